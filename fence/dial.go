package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/klog/v2"

	_ "github.com/concord-dev/concord/grpclimit" // watches and writes share the connection
)

const (
	// keepaliveTime is the shortest time that gRPC allows. A member of etcd that hangs still receives its share of all
	// requests until it is detected, and a write needs so many calls that hardly any succeeds in that time.
	// kube-apiserver waits for 30 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 10 * time.Second
	// dialTimeout leaves time for TLS handshakes on a loaded machine.
	dialTimeout = 20 * time.Second

	probeInterval = 200 * time.Millisecond
	// sayInterval is the time between lines that say what Dial waits for.
	sayInterval = 5 * time.Second
	// firstSaid is how long the first answer may take before that is logged for the first time.
	firstSaid = time.Second
)

// reconnect makes all servers find an etcd that is back within about a second. By
// default attempts are up to two minutes apart after a long outage; a server that found
// etcd early could then take the others, which still wait, for dead.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// streamWindow and connWindow limit, in bytes, how much etcd may send of one answer or watch, and of all together,
// before this process has read any of it. gRPC's default is so small that a page of objects arrives in many pieces. A
// process that is busy decoding watch events takes 10 ms to notice each piece, because Go's scheduler polls the
// network only when there is nothing else to do.
const streamWindow, connWindow = 4 << 20, 16 << 20

var (
	// ErrServerCertificate says that etcd's certificate is not signed by the trusted CA, or is not valid for the
	// endpoint.
	ErrServerCertificate = errors.New("etcd's certificate is refused")
	// ErrClientCertificate says that etcd refuses the client's certificate, or requires one that was not given.
	ErrClientCertificate = errors.New("etcd refuses the client's certificate")
)

// Dial connects to etcd, by TLS or a unix socket ("unix:///absolute/path"), and returns
// once a server answered. It gives up when ctx ends or after 20 s, with the reason
// why the last attempt failed, and says in ctx's log what it waits for. A refused
// certificate, ErrServerCertificate or ErrClientCertificate (wrapped), is not waited for.
// Where there is an egress selector for etcd, it goes through that.
func Dial(ctx context.Context, t storagebackend.TransportConfig) (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints:            t.ServerList,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(reconnect), grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		},
	}
	if err := throughEgress(&config, t); err != nil {
		return nil, err
	}
	if t.TracerProvider != nil {
		config.DialOptions = append(config.DialOptions, grpc.WithStatsHandler(tracing(t.TracerProvider)))
	}
	if t.CertFile != "" || t.KeyFile != "" || t.TrustedCAFile != "" {
		tls, err := transport.TLSInfo{CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.TrustedCAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd client certificates: %w", err)
		}
		config.TLS = tls
	}
	// Errors reach the callers; the client's own account of its retries is only noise.
	logger, err := logutil.CreateDefaultZapLogger(zapcore.ErrorLevel)
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	config.Logger = logger.Named("etcd-client")
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(t.ServerList, ","), err)
	}
	if err := answers(ctx, client, t.ServerList); err != nil {
		// The client is given up; closing it can only say that it was cancelled.
		_ = client.Close()
		return nil, fmt.Errorf("etcd at %s does not answer: %w", strings.Join(t.ServerList, ","), err)
	}
	return client, nil
}

// throughEgress has connections made by the egress selector, where there is one.
func throughEgress(config *clientv3.Config, t storagebackend.TransportConfig) error {
	if t.EgressLookup == nil {
		return nil
	}
	dial, err := t.EgressLookup(egressselector.Etcd.AsNetworkContext())
	if err != nil {
		return fmt.Errorf("egress selector for etcd: %w", err)
	}
	if dial == nil {
		return nil
	}
	config.DialOptions = append(config.DialOptions, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if u, err := url.Parse(address); err == nil && u.Host != "" {
			address = u.Host
		}
		return dial(ctx, "tcp", address)
	}))
	return nil
}

// answers waits for the first answer of etcd and logs what it waits for. It asks below the client, because the client
// would wait for a connection until ctx ends without saying why there is none.
func answers(ctx context.Context, client *clientv3.Client, endpoints []string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	kv := etcdserverpb.NewKVClient(client.ActiveConnection())
	var reason error
	said := time.Now().Add(firstSaid - sayInterval)
	err := wait.PollUntilContextCancel(ctx, probeInterval, true, func(ctx context.Context) (bool, error) {
		asking, cancel := context.WithTimeout(ctx, sayInterval)
		defer cancel()
		_, err := kv.Range(asking, &etcdserverpb.RangeRequest{Key: []byte("health")})
		// A user of etcd may be permitted less than this key, as etcdctl endpoint health knows.
		if err == nil || status.Code(err) == codes.PermissionDenied {
			return true, nil
		}
		if reason == nil || ctx.Err() == nil {
			reason = explain(status.Convert(err).Message())
		}
		if errors.Is(reason, ErrServerCertificate) || errors.Is(reason, ErrClientCertificate) {
			return false, reason
		}
		if time.Since(said) >= sayInterval && ctx.Err() == nil {
			said = time.Now()
			klog.FromContext(ctx).Info("Waiting for etcd", "endpoints", endpoints, "err", reason, "atMost", dialTimeout)
		}
		return false, nil
	})
	if err != nil && reason != nil {
		return reason
	}
	return err
}

// explain distinguishes refused certificates, which is permanent, from errors that may pass. gRPC passes on nothing
// but the text of an error.
func explain(message string) error {
	reason := errors.New(message)
	switch {
	case strings.Contains(message, "remote error: tls: ") && strings.Contains(message, "certificate"):
		return fmt.Errorf("%w: %w", ErrClientCertificate, reason)
	case strings.Contains(message, "tls: failed to verify certificate"):
		return fmt.Errorf("%w: %w", ErrServerCertificate, reason)
	}
	return reason
}
