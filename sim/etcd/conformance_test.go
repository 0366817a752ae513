package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// realEtcd starts an embedded etcd and returns a client.
func realEtcd(t *testing.T) clientv3.KV {
	t.Helper()
	server, err := etcdtest.Start(etcdtest.Config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdtest.Endpoint(server)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client.KV
}

// TestConformance runs the same operations on the simulated store and on a real etcd, and expects the same
// answers. Revisions count from the beginning of a case.
func TestConformance(t *testing.T) {
	real := realEtcd(t)
	t.Run("named", func(t *testing.T) {
		for name, ops := range named {
			t.Run(name, func(t *testing.T) { compare(t, real, ops) })
		}
	})
	const seeds, steps = 60, 60
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			compare(t, real, func(base int64, step int) (clientv3.Op, bool) {
				// Both stores get the same operations, since the seeds are the same.
				g := generator{rand.New(rand.NewPCG(seed, uint64(step)))}
				return g.make(base, int64(step), true), step < steps
			})
		})
	}
}

// compare runs ops on both stores, each of which begins without any key.
func compare(t *testing.T, real clientv3.KV, next func(base int64, step int) (clientv3.Op, bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sides := []side{{kv: real}, {kv: etcd.KV{Doer: etcd.New()}}}
	for i := range sides {
		if _, err := sides[i].kv.Delete(ctx, "\x00", clientv3.WithFromKey()); err != nil {
			t.Fatal(err)
		}
		// After one write, the base revision belongs to this case.
		r, err := sides[i].kv.Put(ctx, "base", "")
		if err != nil {
			t.Fatal(err)
		}
		sides[i].base = r.Header.Revision
	}
	for step := 0; ; step++ {
		var answers [2]string
		for i, s := range sides {
			op, more := next(s.base, step)
			if i == 1 && !more {
				return
			}
			if !more {
				continue
			}
			r, err := s.kv.Do(ctx, op)
			answers[i] = s.describe(r, err)
		}
		if answers[0] != answers[1] {
			op, _ := next(sides[1].base, step)
			t.Fatalf("step %d, %s: etcd answers\n%s\nand the simulation\n%s", step, show(op), answers[0], answers[1])
		}
	}
}

type side struct {
	kv   clientv3.KV
	base int64
}

// sentinel returns the name of an error that matters, or the error's text.
func sentinel(err error) string {
	for _, known := range []error{rpctypes.ErrFutureRev, rpctypes.ErrDuplicateKey, rpctypes.ErrTooManyOps, rpctypes.ErrEmptyKey} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprint(err)
}

func (s side) describe(r clientv3.OpResponse, err error) string {
	if err != nil {
		return sentinel(err)
	}
	var b strings.Builder
	switch {
	case r.Put() != nil:
		fmt.Fprintf(&b, "@%d ", r.Put().Header.Revision-s.base)
		s.put(&b, (*etcdserverpb.PutResponse)(r.Put()))
	case r.Get() != nil:
		fmt.Fprintf(&b, "@%d ", r.Get().Header.Revision-s.base)
		s.get(&b, (*etcdserverpb.RangeResponse)(r.Get()))
	case r.Del() != nil:
		fmt.Fprintf(&b, "@%d ", r.Del().Header.Revision-s.base)
		s.del(&b, (*etcdserverpb.DeleteRangeResponse)(r.Del()))
	case r.Txn() != nil:
		fmt.Fprintf(&b, "@%d ", r.Txn().Header.Revision-s.base)
		s.txn(&b, (*etcdserverpb.TxnResponse)(r.Txn()))
	}
	return b.String()
}

func (s side) kvs(b *strings.Builder, kvs ...*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if kv != nil {
			fmt.Fprintf(b, " %s=%s c%d m%d v%d l%d", kv.Key, kv.Value, kv.CreateRevision-s.base, kv.ModRevision-s.base, kv.Version, kv.Lease)
		}
	}
}

func (s side) put(b *strings.Builder, r *etcdserverpb.PutResponse) {
	b.WriteString("put")
	s.kvs(b, r.PrevKv)
}

func (s side) get(b *strings.Builder, r *etcdserverpb.RangeResponse) {
	fmt.Fprintf(b, "get count=%d more=%t", r.Count, r.More)
	s.kvs(b, r.Kvs...)
}

func (s side) del(b *strings.Builder, r *etcdserverpb.DeleteRangeResponse) {
	fmt.Fprintf(b, "deleted=%d", r.Deleted)
	s.kvs(b, r.PrevKvs...)
}

func (s side) txn(b *strings.Builder, r *etcdserverpb.TxnResponse) {
	fmt.Fprintf(b, "txn %t [", r.Succeeded)
	for _, op := range r.Responses {
		switch {
		case op.GetResponsePut() != nil:
			s.put(b, op.GetResponsePut())
		case op.GetResponseRange() != nil:
			s.get(b, op.GetResponseRange())
		case op.GetResponseDeleteRange() != nil:
			s.del(b, op.GetResponseDeleteRange())
		}
		b.WriteString("; ")
	}
	b.WriteString("]")
}

type script = func(base int64, step int) (clientv3.Op, bool)

func steps(ops func(base int64) []clientv3.Op) script {
	return func(base int64, step int) (clientv3.Op, bool) {
		all := ops(base)
		if step >= len(all) {
			return clientv3.Op{}, false
		}
		return all[step], true
	}
}

// named are the operations on which the protocol relies.
var named = map[string]script{
	"optimistic put under a fence": steps(func(base int64) []clientv3.Op {
		put := func(object, fence int64) clientv3.Op {
			return clientv3.OpTxn(
				[]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("a"), "=", object), clientv3.Compare(clientv3.ModRevision("sv"), "=", fence)},
				[]clientv3.Op{clientv3.OpPut("a", "x")},
				[]clientv3.Op{clientv3.OpGet("sv"), clientv3.OpGet("a")})
		}
		return []clientv3.Op{
			put(0, 0), put(0, 0), clientv3.OpPut("sv", "1"), put(base+1, base+2), put(base+1, base+2), put(base+3, base+2),
			clientv3.OpDelete("a"), put(base+4, base+2), put(0, base+2),
		}
	}),
	"pages of the past": steps(func(base int64) []clientv3.Op {
		return []clientv3.Op{
			clientv3.OpPut("p/a", "1"), clientv3.OpPut("p/b", "1"), clientv3.OpPut("p/c", "1"), clientv3.OpDelete("p/b"),
			clientv3.OpGet("p/", clientv3.WithPrefix(), clientv3.WithLimit(2)),
			clientv3.OpGet("p/", clientv3.WithPrefix(), clientv3.WithLimit(2), clientv3.WithRev(base+3)),
			clientv3.OpGet("p/b\x00", clientv3.WithRange("p0"), clientv3.WithLimit(2), clientv3.WithRev(base+3)),
			clientv3.OpGet("p/", clientv3.WithPrefix(), clientv3.WithRev(base+99)),
		}
	}),
	"a key is deleted and made again": steps(func(int64) []clientv3.Op {
		return []clientv3.Op{
			clientv3.OpPut("a", "1"), clientv3.OpPut("a", "2", clientv3.WithPrevKV()), clientv3.OpDelete("a", clientv3.WithPrevKV()), clientv3.OpDelete("a"),
			clientv3.OpPut("a", "3"), clientv3.OpGet("a"),
		}
	}),
	"keys written twice are refused": steps(func(int64) []clientv3.Op {
		return []clientv3.Op{
			clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpPut("a", "2")}, nil),
			clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpGet("a"), clientv3.OpPut("a", "2")}),
			clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", "1"), clientv3.OpPut("b", "2")}, []clientv3.Op{clientv3.OpPut("a", "1")}),
			clientv3.OpGet(""),
		}
	}),
	"too many operations": steps(func(int64) []clientv3.Op {
		return []clientv3.Op{
			clientv3.OpTxn(nil, slices.Repeat([]clientv3.Op{clientv3.OpGet("a")}, etcd.MaxTxnOps), nil),
			clientv3.OpTxn(nil, slices.Repeat([]clientv3.Op{clientv3.OpGet("a")}, etcd.MaxTxnOps+1), nil),
		}
	}),
}

// generator makes random operations on a few keys.
type generator struct{ *rand.Rand }

func (g generator) key() string { return string(rune('a' + g.IntN(4))) }

func (g generator) make(base, step int64, txns bool) clientv3.Op {
	switch n := g.IntN(12); {
	case n < 4:
		return clientv3.OpPut(g.key(), fmt.Sprint("v", g.IntN(3)), g.options(clientv3.WithPrevKV())...)
	case n == 4:
		return g.delete()
	case n < 8 || !txns:
		return g.get(base, step)
	default:
		return clientv3.OpTxn(g.cmps(base, step), g.ops(base, step), g.ops(base, step))
	}
}

func (g generator) delete() clientv3.Op {
	return clientv3.OpDelete(g.key(), g.options(clientv3.WithPrevKV(), clientv3.WithRange(g.key()+"\x00"))...)
}

func (g generator) options(some ...clientv3.OpOption) []clientv3.OpOption {
	var chosen []clientv3.OpOption
	for _, o := range some {
		if g.IntN(2) == 0 {
			chosen = append(chosen, o)
		}
	}
	return chosen
}

func (g generator) get(base, step int64) clientv3.Op {
	opts := g.options(clientv3.WithRange("c"), clientv3.WithLimit(1+g.Int64N(3)), clientv3.WithCountOnly())
	if g.IntN(3) == 0 {
		opts = append(opts, clientv3.WithRev(base+g.Int64N(step+2)))
	}
	if g.IntN(4) == 0 {
		return clientv3.OpGet("a", append(opts, clientv3.WithFromKey())...)
	}
	return clientv3.OpGet(g.key(), opts...)
}

// ops makes a branch of a transaction. A branch with a delete has only that.
func (g generator) ops(base, step int64) []clientv3.Op {
	if g.IntN(6) == 0 {
		return []clientv3.Op{g.delete()}
	}
	var ops []clientv3.Op
	for range g.IntN(4) {
		if op := g.make(base, step, false); !op.IsDelete() {
			ops = append(ops, op)
		}
	}
	return ops
}

func (g generator) cmps(base, step int64) []clientv3.Cmp {
	var cmps []clientv3.Cmp
	for range g.IntN(3) {
		revision := base + g.Int64N(step+2)
		if g.IntN(3) == 0 {
			revision = 0
		}
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(g.key()), "=", revision))
	}
	return cmps
}

// show formats an operation.
func show(op clientv3.Op) string {
	switch {
	case op.IsPut():
		return fmt.Sprintf("put %s=%s", op.KeyBytes(), op.ValueBytes())
	case op.IsGet():
		return fmt.Sprintf("get %q %q rev=%d limit=%d", op.KeyBytes(), op.RangeBytes(), op.Rev(), op.Limit())
	case op.IsDelete():
		return fmt.Sprintf("delete %q %q", op.KeyBytes(), op.RangeBytes())
	}
	cmps, then, otherwise := op.Txn()
	parts := []string{"if"}
	for i := range cmps {
		parts = append(parts, cmps[i].GetCompare().String())
	}
	for i, branch := range [][]clientv3.Op{then, otherwise} {
		parts = append(parts, []string{"then", "else"}[i])
		for _, inner := range branch {
			parts = append(parts, show(inner))
		}
	}
	return "(" + strings.Join(parts, " ") + ")"
}

// TestStreams reads ranges as streams on both sides; a stream of the simulated store has one piece.
func TestStreams(t *testing.T) {
	sides := []side{{kv: realEtcd(t)}, {kv: etcd.KV{Doer: etcd.New()}}}
	for i := range sides {
		for n := range 50 {
			r, err := sides[i].kv.Put(t.Context(), fmt.Sprintf("key-%02d", n), strings.Repeat("x", n))
			if err != nil {
				t.Fatal(err)
			}
			sides[i].base = r.Header.Revision
		}
	}
	for name, opts := range map[string]func(base int64) []clientv3.OpOption{
		"all":               func(int64) []clientv3.OpOption { return nil },
		"a few":             func(int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithLimit(3)} },
		"the first piece":   func(int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithLimit(10)} },
		"one more":          func(int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithLimit(11)} },
		"as many":           func(int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithLimit(50)} },
		"before":            func(base int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithRev(base - 10)} },
		"a future revision": func(base int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithRev(base + 1)} },
		"nothing":           func(int64) []clientv3.OpOption { return []clientv3.OpOption{clientv3.WithRange("key-")} },
	} {
		var answers [2]string
		for i, s := range sides {
			var got *clientv3.GetResponse
			pieces, err := s.kv.GetStream(t.Context(), "key-", append([]clientv3.OpOption{clientv3.WithRange("key.")}, opts(s.base)...)...)
			if err == nil {
				got, err = clientv3.GetStreamToGetResponse(pieces)
			}
			answers[i] = sentinel(err)
			if err == nil {
				answers[i] = fmt.Sprintf("%d at %d, %t of %d", len(got.Kvs), got.Header.Revision-s.base, got.More, got.Count)
				for _, kv := range got.Kvs {
					answers[i] += fmt.Sprintf(" %s=%s@%d", kv.Key, kv.Value, kv.ModRevision-s.base)
				}
			}
		}
		if answers[0] != answers[1] {
			t.Errorf("%s: etcd answers\n%s\nand the simulation\n%s", name, answers[0], answers[1])
		}
	}
}

// TestNotSimulated: an operation of etcd that is not simulated returns an error that says so, and changes
// nothing.
func TestNotSimulated(t *testing.T) {
	put := clientv3.OpPut("a", "1")
	for _, test := range []struct {
		op   clientv3.Op
		want string
	}{
		{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("a"), "=", 0)}, []clientv3.Op{put}, nil), "version"},
		{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("a"), "<", 9)}, []clientv3.Op{put}, nil), "LESS"},
		{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("a"), "=", 0).WithPrefix()}, []clientv3.Op{put}, nil), "range_end"},
		{clientv3.OpTxn(nil, []clientv3.Op{put, clientv3.OpTxn(nil, nil, nil)}, nil), "a transaction in a transaction"},
		{clientv3.OpTxn(nil, nil, []clientv3.Op{put, clientv3.OpDelete("b")}), "a delete beside other operations"},
	} {
		store := etcd.New()
		if _, err := store.Do(t.Context(), test.op); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "not simulated") {
			t.Errorf("%s: %v, want that %s is not simulated", show(test.op), err, test.want)
		}
		if store.Revision() != 1 {
			t.Errorf("%s was carried out in part", show(test.op))
		}
	}
	if _, err := (etcd.KV{Doer: etcd.New()}).Compact(t.Context(), 1); err == nil {
		t.Error("the simulation compacts")
	}
}
