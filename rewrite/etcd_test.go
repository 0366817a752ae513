package rewrite

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// startEtcd starts an etcd for one test. Its socket is in a directory of its own,
// because the name of a test's directory may be longer than a socket's path may be.
func startEtcd(tb testing.TB) *clientv3.Client {
	tb.Helper()
	c, _ := startEtcdThatStops(tb)
	return c
}

// startEtcdThatStops also returns what ends the etcd and starts it anew on its data.
func startEtcdThatStops(tb testing.TB) (c *clientv3.Client, restart func()) {
	tb.Helper()
	sockets, err := os.MkdirTemp("", "rw")
	must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(sockets) })
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "s")}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg := embed.NewConfig()
	cfg.Dir = tb.TempDir()
	_, cfg.UnsafeNoFsync = tb.(*testing.T) // benchmarks pay for fsync
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	var server *embed.Etcd
	start := func() {
		var err error
		server, err = embed.StartEtcd(cfg)
		must(tb, err)
		select {
		case <-server.Server.ReadyNotify():
		case <-time.After(30 * time.Second):
			tb.Fatal("etcd is not ready after 30 s")
		}
	}
	start()
	tb.Cleanup(func() { server.Close() })
	c, err = clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop()})
	must(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c, func() {
		server.Close()
		start()
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// put writes a value and returns its revision.
func put(tb testing.TB, c *clientv3.Client, key string, value []byte, opts ...clientv3.OpOption) int64 {
	tb.Helper()
	resp, err := c.Put(tb.Context(), key, string(value), opts...)
	must(tb, err)
	return resp.Header.Revision
}

// load writes values by key, in transactions.
func load(tb testing.TB, c *clientv3.Client, n int, key func(int) string, value func(int) []byte) {
	tb.Helper()
	for i := 0; i < n; i += 100 {
		var ops []clientv3.Op
		for j := i; j < min(n, i+100); j++ {
			ops = append(ops, clientv3.OpPut(key(j), string(value(j))))
		}
		_, err := c.Txn(context.Background()).Then(ops...).Commit()
		must(tb, err)
	}
}

// stored returns everything under a prefix.
func stored(tb testing.TB, c *clientv3.Client, prefix string) map[string]Entry {
	tb.Helper()
	resp, err := c.Get(tb.Context(), prefix, clientv3.WithPrefix())
	must(tb, err)
	all := map[string]Entry{}
	for _, kv := range resp.Kvs {
		all[string(kv.Key)] = entry(kv)
	}
	return all
}

// hooked is a KV that calls back before each operation; an error from a hook is the
// operation's.
type hooked struct {
	KV
	beforeRange  func(start string, revision int64) error
	beforeCommit func(fence Fence, puts []Put) error
	afterCommit  func(Committed)
}

func (h hooked) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	if h.beforeRange != nil {
		if err := h.beforeRange(start, revision); err != nil {
			return Page{}, err
		}
	}
	return h.KV.Range(ctx, start, end, limit, revision)
}

func (h hooked) Commit(ctx context.Context, fence Fence, puts []Put) (Committed, error) {
	if h.beforeCommit != nil {
		if err := h.beforeCommit(fence, puts); err != nil {
			return Committed{}, err
		}
	}
	c, err := h.KV.Commit(ctx, fence, puts)
	if err == nil && h.afterCommit != nil {
		h.afterCommit(c)
	}
	return c, err
}

func numbered(prefix string) func(int) string {
	return func(i int) string { return fmt.Sprintf("%sobject-%06d", prefix, i) }
}
