package join

import (
	"net"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// Aggregated returns c with what an aggregated API server's own configuration says: which
// cluster it belongs to (--kubeconfig), where it serves, its versions, and how it stores what
// schemes know.
func (c Config) Aggregated(server *genericapiserver.RecommendedConfig, etcd *genericoptions.EtcdOptions, schemes ...*runtime.Scheme) Config {
	c.Host = server.ClientConfig
	c.Address = server.ExternalAddress
	if server.SecureServing != nil {
		if host, port, err := server.SecureServing.HostPort(); err == nil {
			c.Address = net.JoinHostPort(host, strconv.Itoa(port))
		}
	}
	c.Etcd, c.EnableWatchCache, c.WatchCacheSizes = etcd.StorageConfig, etcd.EnableWatchCache, etcd.WatchCacheSizes
	c.Schemes = slices.Concat(c.Schemes, schemes)
	if v := server.EffectiveVersion; v != nil {
		c.Binary, c.Emulation, c.MinCompatibility = v.BinaryVersion(), v.EmulationVersion(), v.MinCompatibilityVersion()
	}
	return c
}

// Server is Storage and Handlers, for a server that is alone in its delegation chain.
func (j *Join) Server(c *genericapiserver.Config) {
	j.Storage(c)
	j.Handlers(c)
}
