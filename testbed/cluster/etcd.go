package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// embeddedEtcd is the role (process.Self) in which this program runs an etcd. The argument is its data directory.
	embeddedEtcd = "embedded-etcd"

	// NoFsync in the environment of NewEtcd has the etcd not wait for the disk (etcd's --unsafe-no-fsync). It loses
	// nothing when its process is killed, and answers also while others use the disk. Benchmarks do without it.
	NoFsync         = noFsyncVariable + "=yes"
	noFsyncVariable = "CONCORD_ETCD_NO_FSYNC"

	// keepaliveTime is the shortest interval of keepalive pings that grpc-go's clients accept.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	answerTimeout    = 2 * time.Second
)

// ServeEtcd runs etcd and then ends the process, if this process was started by StartEtcd; otherwise it
// returns at once.
func ServeEtcd() {
	process.Serve(map[string]func(context.Context, []string) error{embeddedEtcd: runEtcd})
}

func runEtcd(ctx context.Context, args []string) error {
	etcd, err := embedded.StartEtcd(ctx, args[0], func(c *embed.Config) { c.UnsafeNoFsync = os.Getenv(noFsyncVariable) != "" })
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return etcd.Close()
	case err := <-etcd.Err():
		return errors.Join(err, etcd.Close())
	}
}

// Endpoint returns the address of the etcd with this data directory, which runs in a process of its own or in a server.
func Endpoint(dir string) (string, error) {
	socket, err := embedded.SocketPath(dir)
	return "unix://" + socket, err
}

// removeSocket removes the socket of an etcd that has ended, if the socket is outside of dir: the path of a
// socket must be short, so that it is elsewhere when dir has a long path. The caller removes dir.
func removeSocket(endpoint, dir string) error {
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || strings.HasPrefix(socket, dir) {
		return nil
	}
	return os.RemoveAll(filepath.Dir(socket))
}

// Connect returns a client for an etcd of one or several members, which need not run yet. secure is nil without TLS.
func Connect(secure *tls.Config, endpoints ...string) (*clientv3.Client, error) {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = time.Second
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		TLS:       secure,
		Logger:    zap.NewNop(),
		// By keepalives the client notices that a member does not answer any more, and asks another one.
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: time.Second})},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// Answers returns nil if etcd answers a read.
func Answers(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := client.Get(ctx, "health")
	return err
}

// EtcdFlags returns the flags with which the program etcd is the only member and has these URLs for clients and peers.
func EtcdFlags(dir, client, peer string) []string {
	return []string{
		"--data-dir=" + dir, "--log-level=error", "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	}
}
