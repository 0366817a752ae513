// Package etcdtest runs etcds in the process of a test.
package etcdtest

import (
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// readyLimit is how long an etcd may take to start.
const readyLimit = time.Minute

// Config returns the configuration of an etcd on a directory. It does not fsync, and listens for
// clients on a free port of this host, or at the URLs given.
func Config(dir string, clients ...url.URL) *embed.Config {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	if len(clients) == 0 {
		clients = loopback
	}
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync = dir, true
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = loopback, loopback
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return config
}

// Start starts an etcd and waits until it serves. It has to be closed.
func Start(config *embed.Config) (*embed.Etcd, error) {
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case <-time.After(readyLimit):
		etcd.Close()
		return nil, errors.New("etcd is not ready within a minute")
	}
}

// Endpoint is the address at which the etcd serves clients.
func Endpoint(etcd *embed.Etcd) string { return "http://" + etcd.Clients[0].Addr().String() }
