package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/concord-dev/concord/testbed/etcdtest"
)

// startEtcd starts an etcd for one test. Its socket is in a separate directory, since a test's
// directory may have too long a name for a socket.
func startEtcd(tb testing.TB) *clientv3.Client {
	tb.Helper()
	c, _ := startEtcdThatStops(tb)
	return c
}

// startEtcdThatStops also returns a function that stops the etcd and starts it again with its data.
func startEtcdThatStops(tb testing.TB) (c *clientv3.Client, restart func()) {
	tb.Helper()
	sockets, err := os.MkdirTemp("", "rw")
	must(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(sockets) })
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "s")}
	cfg := etcdtest.Config(tb.TempDir(), client)
	_, cfg.UnsafeNoFsync = tb.(*testing.T) // benchmarks include fsync
	server, err := etcdtest.Start(cfg)
	must(tb, err)
	tb.Cleanup(func() { server.Close() })
	// At most a mebibyte is sent before it is read, since windows of a fixed size do not grow.
	window := []grpc.DialOption{grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(1 << 20)}
	c, err = clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop(), DialOptions: window})
	must(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c, func() {
		server.Close()
		server, err = etcdtest.Start(cfg)
		must(tb, err)
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

// hooked is a KV that calls a hook before each operation; an error of the hook is returned instead
// of doing the operation.
type hooked struct {
	KV
	beforeRange func(start string, revision int64) error
	beforePut   func(fence Fence, put Put) error
}

func (h hooked) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	if h.beforeRange != nil {
		if err := h.beforeRange(start, revision); err != nil {
			return Page{}, err
		}
	}
	return h.KV.Range(ctx, start, end, limit, revision)
}

func (h hooked) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	if h.beforePut != nil {
		if err := h.beforePut(fence, put); err != nil {
			return false, 0, err
		}
	}
	return h.KV.Put(ctx, fence, put)
}

func numbered(prefix string) func(int) string {
	return func(i int) string { return fmt.Sprintf("%sobject-%06d", prefix, i) }
}

// TestRange: Range returns the entries that etcd has, at any revision and with any limit.
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

// TestRangeRefuses: Range returns no more than MaxReply at a time, unless one entry is larger, and
// its error says if the revision is compacted.
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

// TestPut: a value is written if neither its key nor the fence has changed, at a revision of its
// own, and keeps its etcd lease. If the fence has moved, that is the error, whatever happened to
// the key.
func TestPut(t *testing.T) {
	for name, test := range map[string]struct {
		changed, deleted, moved, unfenced bool
	}{
		"untouched":                    {},
		"changed":                      {changed: true},
		"deleted":                      {deleted: true},
		"the fence moved":              {moved: true},
		"the fence is gone":            {unfenced: true},
		"changed, and so is the fence": {changed: true, moved: true},
		"deleted, and so is the fence": {deleted: true, unfenced: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := startEtcd(t)
			kv := NewEtcd(c)
			fence := Fence{Key: policyFence, Revision: put(t, c, policyFence, []byte("a StorageVersion"))}
			lease, err := c.Grant(t.Context(), 3600)
			must(t, err)
			p := Put{Key: "/k", Value: []byte("new"), ModRevision: put(t, c, "/k", []byte("old"), clientv3.WithLease(lease.ID)), Lease: int64(lease.ID)}
			if test.changed {
				put(t, c, p.Key, []byte("a client's"))
			}
			if test.deleted {
				_, err := c.Delete(t.Context(), p.Key)
				must(t, err)
			}
			if test.moved {
				put(t, c, policyFence, nil)
			}
			if test.unfenced {
				_, err := c.Delete(t.Context(), policyFence)
				must(t, err)
			}
			before := stored(t, c, "/")
			newest, err := c.Get(t.Context(), "/")
			must(t, err)

			written, revision, err := kv.Put(t.Context(), fence, p)
			stands := kv.Prove(t.Context(), fence)
			if test.moved || test.unfenced {
				if !errors.Is(err, ErrFenced) || !errors.Is(stands, ErrFenced) || written {
					t.Errorf("got %t, %v, %v", written, err, stands)
				}
			} else if err != nil || stands != nil {
				t.Errorf("got %v, %v", err, stands)
			}
			if want := before; !test.changed && !test.deleted && !test.moved && !test.unfenced {
				if !written || revision != newest.Header.Revision+1 {
					t.Errorf("written %t, at %d after %d", written, revision, newest.Header.Revision)
				}
				want[p.Key] = Entry{Key: p.Key, Value: p.Value, ModRevision: revision, Lease: p.Lease}
			} else if written {
				t.Error("it says that it has written")
			}
			if got := stored(t, c, "/"); !reflect.DeepEqual(got, before) {
				t.Errorf("stored is %+v, want %+v", got, before)
			}
		})
	}
}
