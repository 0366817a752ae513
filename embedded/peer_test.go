package embedded

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// shortDir returns a new directory whose path is short enough for Unix sockets in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, dataDir string) *Etcd {
	t.Helper()
	etcd, err := StartEtcd(t.Context(), dataDir)
	must(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// plainEtcd starts an etcd as older releases did, with a peer port, which took messages from anybody.
func plainEtcd(t *testing.T, dataDir string) *embed.Etcd {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "concord", filepath.Join(dataDir, EtcdDirName)
	client := url.URL{Scheme: "unix", Path: filepath.Join(dataDir, EtcdSocketName)}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(EtcdLogger())
	etcd, err := embed.StartEtcd(cfg)
	must(t, err)
	must(t, awaitReady(t.Context(), etcd))
	return etcd
}

// TestNoPeerPort: an etcd listens to no peers, also on the data of an older release, in which its own
// peer URL is another one.
func TestNoPeerPort(t *testing.T) {
	dataDir := shortDir(t)
	plain := plainEtcd(t, dataDir)
	if len(plain.Peers) != 1 {
		t.Fatalf("an etcd with a peer URL has %d peer ports", len(plain.Peers))
	}
	old := dial(t, "unix://"+filepath.Join(dataDir, EtcdSocketName))
	if _, err := old.Put(t.Context(), "kept", "value"); err != nil {
		t.Fatal(err)
	}
	_ = old.Close()
	plain.Close()

	for range 2 {
		etcd := start(t, dataDir)
		if peers := etcd.etcd.Peers; len(peers) > 0 {
			t.Errorf("it listens on %v", peers[0].Addr())
		}
		client := dial(t, etcd.Endpoint)
		if got, err := client.Get(t.Context(), "kept"); err != nil || got.Count != 1 {
			t.Errorf("what was stored is gone: %v", err)
		}
		if _, err := client.Put(t.Context(), "new", "value"); err != nil {
			t.Error(err)
		}
		must(t, etcd.Close())
	}
	if left, err := os.ReadDir(filepath.Join(dataDir, privateDirName)); err != nil || len(left) > 0 {
		t.Errorf("an etcd that was closed leaves %v behind (%v)", left, err)
	}
}
