package kube_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/ledger"
)

// writeTimeout is how long a write may be tried again: a server that goes answers 503, or not
// at all.
const writeTimeout = 30 * time.Second

// patience is how long a client waits for an answer.
const patience = 5 * time.Second

// writers write widgets until they are stopped.
type writers struct {
	t *testing.T
	// patience is how long each waits for an answer.
	patience time.Duration

	mu       sync.Mutex
	servers  []*apiserver
	stop     context.CancelFunc
	done     sync.WaitGroup
	written  atomic.Int64
	attempts []*attempt
}

// attempt is a write through a server. Its end is zero while it is under way.
type attempt struct {
	server     *apiserver
	begin, end time.Time
}

// write has several clients change the first n widgets, each write through one of the servers
// and, if that fails, through the others.
func write(t *testing.T, n int, servers ...*apiserver) *writers {
	return writePatiently(t, patience, n, servers...)
}

// writePatiently is write of clients that wait so long for an answer.
func writePatiently(t *testing.T, patience time.Duration, n int, servers ...*apiserver) *writers {
	ctx, stop := context.WithCancel(context.Background())
	w := &writers{t: t, patience: patience, stop: stop}
	w.through(servers...)
	for client := range 4 {
		w.done.Go(func() {
			for i := client; ctx.Err() == nil; i += 4 {
				w.one(ctx, i, fmt.Sprintf("w-%d", i%n))
			}
		})
	}
	t.Cleanup(func() { w.end() })
	return w
}

// through names the servers that are written through from now on.
func (w *writers) through(servers ...*apiserver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = servers
}

func (w *writers) server(i int) *apiserver {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[i%len(w.servers)]
}

func (w *writers) one(ctx context.Context, i int, name string) {
	patch := []byte(fmt.Sprintf(`{"spec":{"n":%d}}`, i))
	deadline := time.Now().Add(writeTimeout)
	for try := i; ctx.Err() == nil; try++ {
		err := w.attempt(ctx, w.server(try), name, patch)
		switch {
		case err == nil:
			w.written.Add(1)
			return
		case ctx.Err() != nil:
			return
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || time.Now().After(deadline):
			w.t.Errorf("write of %s: %v", name, err)
			return
		}
	}
}

func (w *writers) attempt(ctx context.Context, s *apiserver, name string, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	client := dynamic.NewForConfigOrDie(w.config(s)).Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	this := &attempt{server: s, begin: time.Now()}
	w.mu.Lock()
	w.attempts = append(w.attempts, this)
	w.mu.Unlock()
	_, err := client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	w.mu.Lock()
	this.end = time.Now()
	w.mu.Unlock()
	return err
}

// config is access that has no limit of its own.
func (w *writers) config(s *apiserver) *rest.Config {
	config := s.as(adminToken)
	config.Timeout = 0
	return config
}

// across counts the attempts through a server that were under way from one time to another.
func (w *writers) across(s *apiserver, from, to time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.attempts {
		if a.server == s && a.begin.Before(from) && (a.end.IsZero() || a.end.After(to)) {
			n++
		}
	}
	return n
}

// end stops the writers and returns how much they wrote.
func (w *writers) end() int64 {
	w.stop()
	w.done.Wait()
	return w.written.Load()
}

// readable says whether a server reads all widgets.
func (s *apiserver) readable(n int) {
	s.t.Helper()
	list, err := s.widgets().List(s.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != n {
		s.t.Errorf("%s lists %d widgets, error %v", s.Name, len(list.Items), err)
	}
	if _, err := s.Kube().CoreV1().Namespaces().List(s.t.Context(), metav1.ListOptions{}); err != nil {
		s.t.Errorf("%s: %v", s.Name, err)
	}
}

// Concord itself is upgraded from the release before, server by server, and rolled back and upgraded
// again: servers of both releases agree, and migrate whichever of them leads.
func testOwnUpgrade(t *testing.T) {
	c := newControl(t)
	servers := []*apiserver{c.ready(earlier, "a-0"), c.ready(earlier, "b-0")}
	const n = 50
	servers[0].createWidgets(n)
	servers[0].migrated(time.Minute)
	w := write(t, n, servers...)
	for i, step := range []struct {
		server int
		role   string
	}{{0, ours}, {1, ours}, {0, earlier}, {1, earlier}, {1, ours}, {0, ours}} {
		stays := servers[1-step.server]
		w.through(stays)
		servers[step.server].end()
		s := c.ready(step.role, fmt.Sprintf("%c-%d", 'a'+step.server, i+1))
		servers[step.server] = s
		w.through(servers...)
		s.agreed(time.Minute, 2)
		version := fmt.Sprintf("v%d", 2-i%2)
		s.flip(version)
		stays.storedVersions(time.Minute, version)
		if found := c.encodings(); len(found) != 1 || found[agree.Encoding("example.com/"+version)] != n {
			t.Errorf("step %d, %s in place of server %d: in etcd are %v", i+1, step.role, step.server, found)
		}
		stays.readable(n)
		s.readable(n)
	}
	if written := w.end(); written < n {
		t.Errorf("%d writes", written)
	}
}

// A server is paused in the middle of its writes while the others flip and migrate. When it goes
// on it writes no old value, although clients still wait for the writes that it had begun. An
// etcd of three members loses one meanwhile.
func testPaused(t *testing.T) {
	c, members := newReplicated(t)
	one, two := c.ready(ours, "one"), c.ready(ours, "two")
	one.createWidgets(50)
	one.migrated(time.Minute)
	w := writePatiently(t, 5*time.Minute, 50, two)
	eventually(t, time.Minute, "writes are under way", func(context.Context) error {
		if n := w.written.Load(); n < 100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	var paused time.Time
	eventually(t, time.Minute, "a server is paused while a write is under way in it", func(context.Context) error {
		two.Pause()
		paused = time.Now()
		w.through(one)
		one.readable(50) // Time for the clients to read answers that came before the pause.
		if w.across(two, paused, time.Now()) > 0 {
			return nil
		}
		w.through(two)
		two.Resume()
		return errors.New("it had answered all of them")
	})
	one.flip("v2")
	members[0].Kill()
	one.storedVersions(2*time.Minute, "v2")
	puts := c.follow("example.com/widgets")
	w.through(two, one)
	resumed := time.Now()
	two.Resume()
	one.agreed(time.Minute, 2)
	before := w.written.Load()
	eventually(t, time.Minute, "both servers write again", func(context.Context) error {
		if n := w.written.Load(); n < before+100 {
			return fmt.Errorf("%d", n-before)
		}
		return nil
	})
	w.end()
	if n := w.across(two, paused, resumed); n == 0 {
		t.Error("no write was under way while the server was paused: nothing was tested")
	} else {
		t.Logf("%d writes were under way while the server was paused", n)
	}
	if found := puts(); found["example.com/v2"] < 100 || len(found) != 1 {
		t.Errorf("written since are %v", found)
	}
	if found := c.encodings(); len(found) != 1 {
		t.Errorf("in etcd are %v", found)
	}
}

// follow counts the encodings of all puts of a resource from now until the function that it returns is called.
func (c *control) follow(resource string) func() map[agree.Encoding]int {
	c.t.Helper()
	stop, err := ledger.Record(c.t.Context(), c.Raw, registry+resource+"/")
	must(c.t, err)
	return func() map[agree.Encoding]int {
		events, err := stop(c.t.Context())
		must(c.t, err)
		found := map[agree.Encoding]int{}
		for _, e := range events {
			encoding, _, _ := migratestore.Envelope(e.Value)
			found[encoding]++
		}
		return found
	}
}

// newReplicated starts an etcd of three members over TLS.
func newReplicated(t *testing.T) (*control, []*cluster.Process) {
	t.Helper()
	c := newFiles(t)
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	must(t, err)
	cert, private := c.write("etcd.crt", string(certificate)), c.write("etcd.key", string(key))
	var clients, peers, initial []string
	for i := range 3 {
		clients, peers = append(clients, "https://"+cluster.FreeAddress(t)), append(peers, "https://"+cluster.FreeAddress(t))
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	var members []*cluster.Process
	for i := range 3 {
		name := fmt.Sprintf("m%d", i)
		members = append(members, start(t, etcd, name, c.Dir, "--name="+name, "--data-dir="+c.Path(name), "--unsafe-no-fsync", "--log-level=error",
			"--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i], "--cert-file="+cert, "--key-file="+private,
			"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(initial, ","),
			"--peer-auto-tls"))
	}
	pool, err := certutil.NewPool(cert)
	must(t, err)
	c.etcd = []string{"--etcd-servers=" + strings.Join(clients, ","), "--etcd-cafile=" + cert}
	c.connect(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, clients...)
	c.prepare()
	return c, members
}
