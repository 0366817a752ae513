package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// embeddedEtcd is this program as an etcd on the directory that is its argument.
	embeddedEtcd = "embedded-etcd"

	// keepaliveTime is the least that an etcd allows to a client that waits.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	answerTimeout    = 2 * time.Second
)

// ServeEtcd makes this process the etcd that it was started as, and ends it; if it was
// started as none it returns.
func ServeEtcd() {
	process.Serve(map[string]func(context.Context, []string) error{embeddedEtcd: runEtcd})
}

func runEtcd(ctx context.Context, args []string) error {
	etcd, err := embedded.StartEtcd(ctx, args[0])
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

// Endpoint is where the etcd on a directory listens, be it a process of its own or in a server.
func Endpoint(dir string) (string, error) {
	socket, err := embedded.SocketPath(dir)
	return "unix://" + socket, err
}

// removeSocket removes the socket of an etcd that has ended, which is elsewhere if the path of its
// directory is too long for one. What is in dir is left to whoever removes that.
func removeSocket(endpoint, dir string) error {
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || strings.HasPrefix(socket, dir) {
		return nil
	}
	return os.RemoveAll(filepath.Dir(socket))
}

// Connect returns a client for an etcd of one or several members, which need not run yet.
func Connect(endpoints ...string) (*clientv3.Client, error) {
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = time.Second
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		Logger:    zap.NewNop(),
		// A member that falls silent is detected, and another one is asked.
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: time.Second})},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// Answers returns nil if the etcd does.
func Answers(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := client.Get(ctx, "health")
	return err
}

// EtcdFlags returns the flags of the program etcd, as the only member, for the URLs of its clients and peers.
func EtcdFlags(dir, client, peer string) []string {
	return []string{
		"--data-dir=" + dir, "--log-level=error", "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	}
}
