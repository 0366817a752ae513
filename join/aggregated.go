package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join/internal/local"
	"github.com/concord-dev/concord/member/hosting"
)

// newHosting makes an aggregated server run the whole protocol in its own etcd, where it reaches itself through the
// returned API.
func newHosting(config Config) (*hosting.Host, *local.API, error) {
	host := AsComponent(config.Host, compat.ConcordServer, config.Emulation)
	host.ContentType, host.AcceptContentTypes = "", ""
	clients, err := clientsOf(host)
	if err != nil {
		return nil, nil, fmt.Errorf("the host cluster: %w", err)
	}
	return hosting.New(hosting.Config{
		Objects: clients.objects, Serves: hosting.Discovery(clients.kube.Discovery().RESTClient()), Versions: config.versions(),
		RenewInterval: config.IdentityLeaseRenewInterval, Logger: klog.Background(),
	}), local.New(), nil
}

// Aggregated returns c completed from an aggregated API server's own configuration: the cluster
// that it belongs to (--kubeconfig), its address, its versions, and the storage of the types in
// schemes.
func (c Config) Aggregated(server *genericapiserver.RecommendedConfig, etcd *genericoptions.EtcdOptions, schemes ...*runtime.Scheme) Config {
	c.Host = server.ClientConfig
	c.Address = server.ExternalAddress
	if server.SecureServing != nil {
		if host, port, err := server.SecureServing.HostPort(); err == nil {
			c.Address = net.JoinHostPort(host, strconv.Itoa(port))
		}
	}
	c.Etcd, c.EnableWatchCache, c.WatchCacheSizes = etcd.StorageConfig, etcd.EnableWatchCache, etcd.WatchCacheSizes
	c.EtcdServersOverrides = etcd.EtcdServersOverrides
	c.Schemes = slices.Concat(c.Schemes, schemes)
	if v := server.EffectiveVersion; v != nil {
		c.Binary, c.Emulation, c.MinCompatibility = v.BinaryVersion(), v.EmulationVersion(), v.MinCompatibilityVersion()
	}
	return c
}

// Join is New, Storage and Handlers for an aggregated API server with this configuration, which
// is alone in its delegation chain. Start follows when all that it stores is installed.
func (c Config) Join(ctx context.Context, server *genericapiserver.RecommendedConfig, etcd *genericoptions.EtcdOptions, schemes ...*runtime.Scheme) (*Join, error) {
	if _, joined := server.RESTOptionsGetter.(fenced); joined {
		return nil, errors.New("join: Join was called twice with one configuration")
	}
	j, err := New(ctx, c.Aggregated(server, etcd, schemes...))
	if err != nil {
		return nil, err
	}
	j.Storage(&server.Config)
	j.Handlers(&server.Config)
	return j, nil
}
