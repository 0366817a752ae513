package embedded

import (
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// WithoutPeers has an etcd of one member that is about to start listen to no peers: a raft message to
// a peer port is a write past all authentication. The address that its membership names leads nowhere.
func WithoutPeers(cfg *embed.Config) {
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
}
