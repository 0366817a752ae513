package rewrite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
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
	// No more than a mebibyte is sent before it is taken: windows that are set do not grow.
	window := []grpc.DialOption{grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(1 << 20)}
	c, err = clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop(), DialOptions: window})
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

// What is read is what etcd has, at any revision and up to any limit.
func TestRange(t *testing.T) {
	c := startEtcd(t)
	const n = 700
	key := numbered("/registry/things/")
	load(t, c, n, key, func(i int) []byte { return fmt.Appendf(nil, "%d %s", i, bytes.Repeat([]byte("x"), 5*i)) })
	reader := NewEtcd(c)
	first, err := reader.Range(t.Context(), key(0), key(1), 1, 0)
	must(t, err)
	for _, limit := range []int64{1, 2, 500, n, n + 1, 0} {
		for _, revision := range []int64{0, first.Revision} {
			page, err := reader.Range(t.Context(), key(3), "/registry/things0", limit, revision)
			must(t, err)
			whole, err := c.Get(t.Context(), key(3), clientv3.WithRange("/registry/things0"), clientv3.WithLimit(limit))
			must(t, err)
			want := Page{More: whole.More, Count: whole.Count, Revision: first.Revision}
			for _, kv := range whole.Kvs {
				want.Entries = append(want.Entries, entry(kv))
			}
			if !reflect.DeepEqual(page, want) {
				t.Errorf("limit %d: %d entries, %t %d %d; want %d, %t %d %d", limit,
					len(page.Entries), page.More, page.Count, page.Revision, len(want.Entries), want.More, want.Count, want.Revision)
			}
		}
	}
	if page, err := reader.Range(t.Context(), "/registry/nothing", "/registry/nothinh", 10, 0); err != nil || len(page.Entries) > 0 || page.More || page.Revision != first.Revision {
		t.Errorf("of nothing: %+v, %v", page, err)
	}
}

// A reader takes no more than MaxReply at a time, unless one entry is larger, and tells what
// has become of a revision.
func TestRangeRefuses(t *testing.T) {
	c := startEtcd(t)
	key := numbered("/registry/things/")
	const large, most = 1 << 20, MaxReply >> 20
	for i := range most + 2 {
		put(t, c, key(i), make([]byte, large))
	}
	load(t, c, 1000, numbered("/registry/small/"), func(int) []byte { return make([]byte, 100) })
	reader := NewEtcd(c)
	if _, err := reader.Range(t.Context(), key(0), key(most+2), most+2, 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%d MiB: %v, want %v", most+2, err, ErrTooLarge)
	}
	if page, err := reader.Range(t.Context(), key(0), key(most+2), most-1, 0); err != nil || len(page.Entries) != most-1 {
		t.Errorf("%d MiB: %d entries, %v", most-1, len(page.Entries), err)
	}
	revision := put(t, c, key(0), nil)
	_, err := c.Compact(t.Context(), revision)
	must(t, err)
	if _, err := reader.Range(t.Context(), key(0), key(6), 6, revision-1); !errors.Is(err, ErrCompacted) {
		t.Errorf("a compacted revision: %v, want %v", err, ErrCompacted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := reader.Range(ctx, key(0), key(6), 6, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

// countTransactions returns a KV and how many transactions it has sent.
func countTransactions(c *clientv3.Client) (*Etcd, *int) {
	kv, transactions := NewEtcd(c), new(int)
	commit := kv.commit
	kv.commit = func(ctx context.Context, txn *etcdserverpb.TxnRequest, maxReply int) (*etcdserverpb.TxnResponse, error) {
		*transactions++
		return commit(ctx, txn, maxReply)
	}
	return kv, transactions
}

// Objects that nobody has touched take one transaction without one for each of them. Where one
// was touched, only that one is not written, and comes back as it is.
func TestCommit(t *testing.T) {
	for name, test := range map[string]struct {
		objects          int
		changed, deleted []int
		moved            bool
		transactions     int
	}{
		"untouched":        {objects: 5, transactions: 1},
		"one changed":      {objects: 5, changed: []int{2}, transactions: 2},
		"one deleted":      {objects: 5, deleted: []int{4}, transactions: 2},
		"both":             {objects: 5, changed: []int{0}, deleted: []int{1}, transactions: 2},
		"all changed":      {objects: 2, changed: []int{0, 1}, transactions: 2},
		"a single one":     {objects: 1, transactions: 1},
		"one that changed": {objects: 1, changed: []int{0}, transactions: 1},
		"the fence moved":  {objects: 5, moved: true, transactions: 2},
		"nothing to write": {transactions: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := startEtcd(t)
			kv, transactions := countTransactions(c)
			key := numbered("/k/")
			fence := Fence{Key: policyFence, Revision: put(t, c, policyFence, nil)}
			lease, err := c.Grant(t.Context(), 3600)
			must(t, err)
			var puts []Put
			want := map[string]Entry{}
			for i := range test.objects {
				revision := put(t, c, key(i), []byte("old"), clientv3.WithLease(lease.ID))
				puts = append(puts, Put{Key: key(i), Value: []byte("new"), ModRevision: revision, Lease: int64(lease.ID)})
				want[key(i)] = Entry{Key: key(i), Value: []byte("new"), Lease: int64(lease.ID)}
			}
			for _, i := range test.changed {
				revision := put(t, c, key(i), []byte("a client's"))
				want[key(i)] = Entry{Key: key(i), Value: []byte("a client's"), ModRevision: revision}
			}
			for _, i := range test.deleted {
				_, err := c.Delete(t.Context(), key(i))
				must(t, err)
				delete(want, key(i))
			}
			if test.moved {
				put(t, c, policyFence, nil)
				before := stored(t, c, "/k/")
				if _, err := kv.Commit(t.Context(), fence, puts); !errors.Is(err, ErrFenced) || !reflect.DeepEqual(stored(t, c, "/k/"), before) || *transactions != test.transactions {
					t.Errorf("after %d transactions: %v", *transactions, err)
				}
				return
			}
			got, err := kv.Commit(t.Context(), fence, puts)
			must(t, err)
			if len(got.Outcomes) != len(puts) || *transactions != test.transactions {
				t.Fatalf("%d transactions have %d outcomes", *transactions, len(got.Outcomes))
			}
			now := stored(t, c, "/k/")
			for i, o := range got.Outcomes {
				entry, there := want[key(i)]
				switch touched := slices.Contains(test.changed, i); {
				case !there && (o.Written || o.Current != nil), touched && (o.Written || o.Current == nil || !reflect.DeepEqual(*o.Current, entry)), there && !touched && (!o.Written || o.Current != nil):
					t.Errorf("object %d: %+v", i, o)
				}
				if there && entry.ModRevision == 0 {
					entry.ModRevision = got.Revision
					want[key(i)] = entry
				}
			}
			if !reflect.DeepEqual(now, want) {
				t.Errorf("stored is %+v, want %+v", now, want)
			}
		})
	}
}

// After a key had changed, transactions are made for each key for a while: clients are at work.
func TestAfterConflict(t *testing.T) {
	c := startEtcd(t)
	kv, transactions := countTransactions(c)
	fence := Fence{Key: policyFence, Revision: put(t, c, policyFence, nil)}
	key := numbered("/k/")
	for i := range 3 * afterConflict {
		puts := []Put{{Key: key(2 * i), ModRevision: put(t, c, key(2*i), nil)}, {Key: key(2*i + 1), ModRevision: put(t, c, key(2*i+1), nil)}}
		put(t, c, key(2*i), nil)
		got, err := kv.Commit(t.Context(), fence, puts)
		must(t, err)
		if got.Outcomes[0].Written || got.Outcomes[0].Current == nil || !got.Outcomes[1].Written {
			t.Fatalf("%+v", got)
		}
	}
	if most := 3*afterConflict + 3; *transactions > most {
		t.Errorf("%d transactions, want %d at most", *transactions, most)
	}
}
