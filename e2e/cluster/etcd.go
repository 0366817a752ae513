package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	testbed "github.com/concord-dev/concord/testbed/cluster"
)

const (
	etcdStartTimeout = 60 * time.Second
	leaderTimeout    = 2 * time.Second
)

// Etcd is an etcd on a unix socket, in a process of its own.
type Etcd struct {
	*Process
	*testbed.Etcd
}

// noFsync has the program etcd not wait for the disk, as testbed.NoFsync does.
const noFsync = "--unsafe-no-fsync"

// StartEtcd starts an etcd on dataDir and waits until it answers. It waits for the disk in benchmarks only.
func StartEtcd(t testing.TB, dataDir, logDir string) *Etcd {
	t.Helper()
	var environment []string
	if _, benchmark := t.(*testing.B); !benchmark {
		environment = []string{testbed.NoFsync}
	}
	at, err := testbed.NewEtcd("etcd", dataDir, filepath.Join(logDir, "etcd.log"), environment...)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, at.Raw)
	e := &Etcd{Process: adopt(t, at.Program), Etcd: at}
	e.Start()
	e.WaitReady()
	return e
}

// Endpoint is the address of the etcd that a server with this directory embeds.
func Endpoint(t testing.TB, dataDir string) string {
	t.Helper()
	endpoint, err := testbed.Endpoint(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// Connect returns a client for an etcd of one or several members, which need not run yet.
// It is closed with the test.
func Connect(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	return connect(t, nil, endpoints...)
}

// connect is Connect for an etcd with TLS, if trusting is not nil.
func connect(t testing.TB, trusting *tls.Config, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := testbed.Connect(trusting, endpoints...)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, client)
	return client
}

func closeLater(t testing.TB, client *clientv3.Client) {
	t.Cleanup(func() {
		if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Logf("close the etcd client: %v", err)
		}
	})
}

// WaitReady waits until the etcd answers.
func (e *Etcd) WaitReady() {
	e.t.Helper()
	if err := e.Await(context.Background()); err != nil {
		e.t.Fatal(err)
	}
}

// Streams returns how many ranges the etcd is sending as streams now, according to its metrics.
func (e *Etcd) Streams(ctx context.Context) (int, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(e.Endpoint, "unix://"))
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	streams := 0
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, number, _ := strings.Cut(lines.Text(), " ")
		if !strings.Contains(name, `"RangeStream"`) {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		switch {
		case strings.HasPrefix(name, "grpc_server_started_total{"):
			streams += n
		case strings.HasPrefix(name, "grpc_server_handled_total{"):
			streams -= n
		}
	}
	return streams, nil
}
