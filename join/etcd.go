package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/grpclog"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/etcdhealth"
)

const (
	etcdDialTimeout = 30 * time.Second
	// defaultReadycheckTimeout is kube-apiserver's for --etcd-readycheck-timeout.
	defaultReadycheckTimeout = 2 * time.Second
)

func init() {
	// gRPC logs every attempt to connect; callers get the failures as errors. The logger has to be set before gRPC is
	// used.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
}

// Etcd is the connection to etcd that everything in the process shares.
type Etcd struct {
	client *clientv3.Client
	health *etcdhealth.Health
	end    func() error
}

// Dial connects to etcd and keeps watching whether it answers. The error is one line that
// names the flags to look at.
func Dial(ctx context.Context, config storagebackend.Config) (*Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdDialTimeout)
	defer cancel()
	client, err := fence.Dial(ctx, config.Transport)
	switch {
	case errors.Is(err, fence.ErrServerCertificate):
		return nil, fmt.Errorf("%w: --etcd-cafile must name the CA that signed it, and --etcd-servers hosts that it is for", err)
	case errors.Is(err, fence.ErrClientCertificate):
		return nil, fmt.Errorf("%w: --etcd-certfile and --etcd-keyfile must name a certificate of the CA that etcd trusts", err)
	case err != nil:
		return nil, fmt.Errorf("%w: check --etcd-servers, and that etcd runs there", err)
	}
	limit := config.ReadycheckTimeout
	if limit <= 0 {
		limit = defaultReadycheckTimeout
	}
	health := etcdhealth.Watch(client, config.Prefix, limit)
	return &Etcd{client: client, health: health, end: sync.OnceValue(func() error {
		health.Stop()
		return client.Close()
	})}, nil
}

// Client returns the connection.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// Close ends the connection, and all that waits for etcd. It may be called again.
func (e *Etcd) Close() error { return e.end() }
