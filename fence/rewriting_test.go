package fence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// An update that changes nothing is made once in a rewrite, on what etcd holds, and writes
// the object in the current encoding by one transaction; one that has nothing to do at all
// writes nothing. Without the mark it begins with the cached object, and is made twice.
func TestRewritingMakesUpdatesOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		mark func(context.Context) context.Context
		runs int
	}{
		"rewriting": {mark: Rewriting, runs: 1},
		"a client":  {mark: func(ctx context.Context) context.Context { return ctx }, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			old, _ := w.widgetStore(widgetsV1, widgetsV1, false)
			w.permit(widgets, encV1)
			key := "/example.com/widgets/w"
			if err := old.Create(t.Context(), key, widget(widgetsV1, "w", "s"), nil, 0); err != nil {
				t.Fatal(err)
			}
			s, _ := w.widgetStore(widgetsV2, widgetsV2, true)
			w.permit(widgets, encV2)
			list := newWidgetList(widgetsV2)
			if err := s.GetList(t.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil || len(list.Items) != 1 {
				t.Fatalf("the cache has %d objects: %v", len(list.Items), err)
			}
			update := func() (runs int, revision int64) {
				out := emptyWidget(widgetsV2)
				err := s.GuaranteedUpdate(tc.mark(t.Context()), key, out, false, nil, func(in runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
					runs++
					return unchanged(in, meta)
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				revision, err = strconv.ParseInt(out.GetResourceVersion(), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return runs, revision
			}
			before := w.revision()
			runs, written := update()
			if version, size := w.storedAs("w"); version != string(encV2) || size != "s" {
				t.Errorf("stored as %q with size %q", version, size)
			}
			if runs != tc.runs || written != before+1 || w.revision() != written {
				t.Errorf("%d runs and a write at revision %d after %d, etcd is at %d; want %d runs and one transaction", runs, written, before, w.revision(), tc.runs)
			}
			if _, again := update(); again != written || w.revision() != written {
				t.Errorf("nothing was to be done and revision %d was written after %d", w.revision(), written)
			}
		})
	}
}

func unchanged(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
	return in, nil, nil
}

// revision is etcd's.
func (w *world) revision() int64 {
	w.Helper()
	resp, err := w.fence.Client().Get(w.Context(), w.prefix)
	if err != nil {
		w.Fatal(err)
	}
	return resp.Header.Revision
}

// heldKV holds transactions back, and counts them.
type heldKV struct {
	clientv3.KV
	begun   chan context.Context
	release chan struct{}
}

func (h *heldKV) Txn(ctx context.Context) clientv3.Txn {
	return heldTxn{Txn: h.KV.Txn(ctx), kv: h, ctx: ctx}
}

type heldTxn struct {
	clientv3.Txn
	kv  *heldKV
	ctx context.Context
}

func (h heldTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	return heldTxn{Txn: h.Txn.If(cs...), kv: h.kv, ctx: h.ctx}
}

func (h heldTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return heldTxn{Txn: h.Txn.Then(ops...), kv: h.kv, ctx: h.ctx}
}

func (h heldTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	return heldTxn{Txn: h.Txn.Else(ops...), kv: h.kv, ctx: h.ctx}
}

func (h heldTxn) Commit() (*clientv3.TxnResponse, error) {
	h.kv.begun <- h.ctx
	select {
	case <-h.kv.release:
		return h.Txn.Commit()
	case <-h.ctx.Done():
		return nil, h.ctx.Err()
	}
}

// Reads that are asked for during one are made by the next, each with the answer that it
// would have had alone.
func TestGetsAreMadeTogether(t *testing.T) {
	w := newWorld(t)
	const n = 2*maxGets + 1
	for i := range n {
		if i%2 == 0 {
			if _, err := testEtcd.Put(t.Context(), fmt.Sprint(w.prefix, "/", i), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	kv := &heldKV{KV: testEtcd.KV, begun: make(chan context.Context), release: make(chan struct{})}
	g := newGets(kv)
	type answer struct {
		i        int
		response kubernetes.GetResponse
		err      error
	}
	answers := make(chan answer, n)
	ask := func(i int) {
		response, err := g.Do(t.Context(), fmt.Sprint(w.prefix, "/", i))
		answers <- answer{i, response, err}
	}
	go ask(0)
	<-kv.begun // alone
	for i := 1; i < n; i++ {
		go ask(i)
	}
	eventually(t, "the others to wait", func() bool { return g.Waiting() == n-1 })
	kv.release <- struct{}{}
	for range 2 { // the two times maxGets that are left
		<-kv.begun
		kv.release <- struct{}{}
	}
	want := w.revision()
	for range n {
		a := <-answers
		switch kv := a.response.KV; {
		case a.err != nil || a.response.Revision != want:
			t.Errorf("%d: revision %d, want %d: %v", a.i, a.response.Revision, want, a.err)
		case a.i%2 == 1 && kv != nil:
			t.Errorf("%d was never written, and is %q", a.i, kv.Value)
		case a.i%2 == 0 && (kv == nil || string(kv.Value) != fmt.Sprint(a.i) || kv.ModRevision == 0):
			t.Errorf("%d is %v", a.i, kv)
		}
	}
}

// Whoever gives up is answered at once and disturbs nobody; what nobody waits for ends.
func TestGetsGivenUp(t *testing.T) {
	w := newWorld(t)
	kv := &heldKV{KV: testEtcd.KV, begun: make(chan context.Context), release: make(chan struct{})}
	g := newGets(kv)
	errs := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	ask := func(ctx context.Context) {
		_, err := g.Do(ctx, w.prefix)
		errs <- err
	}
	go ask(ctx)
	reading := <-kv.begun
	go ask(t.Context())
	eventually(t, "the other one to wait", func() bool { return g.Waiting() == 1 })
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	<-reading.Done()
	<-kv.begun
	kv.release <- struct{}{}
	if err := <-errs; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
}
