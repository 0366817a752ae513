package fence

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Writes that are asked for during one are made by the next, each on its own conditions and
// with the answer that it would have had alone.
func TestPutsAreMadeTogether(t *testing.T) {
	w := newWorld(t)
	fence := w.prefix + "/fence"
	standing, err := testEtcd.Put(t.Context(), fence, "reports")
	if err != nil {
		t.Fatal(err)
	}
	rev := standing.Header.Revision
	key := func(i int) string { return fmt.Sprint(w.prefix, "/", i) }
	taken, err := testEtcd.Put(t.Context(), key(1), "taken")
	if err != nil {
		t.Fatal(err)
	}
	kv := &heldKV{KV: testEtcd.KV, begun: make(chan context.Context), release: make(chan struct{})}
	p := newPuts(kv)
	asked := []put{
		{key: key(0), value: []byte("alone")},
		{key: key(1), value: []byte("x"), getOnFailure: true}, // is there already
		{key: key(1), value: []byte("first"), revision: taken.Header.Revision},
		{key: key(2), value: []byte("x"), fenceRevision: rev - 1, getOnFailure: true}, // the permission is old
		{key: key(3), value: []byte("new")},
		{key: key(3), value: []byte("x")}, // has lost against the one before
		{key: key(1), value: []byte("x")},
	}
	attempts := make([]attempt, len(asked))
	var wg sync.WaitGroup
	for i, one := range asked {
		if one.fenceKey = fence; one.fenceRevision == 0 {
			one.fenceRevision = rev
		}
		wg.Go(func() {
			var err error
			if attempts[i], err = p.Do(t.Context(), one); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
		if i == 0 {
			<-kv.begun
		} else {
			eventually(t, "it to wait", func() bool { return p.Waiting() == i })
		}
	}
	transactions := 1
	for kv.release <- struct{}{}; ; kv.release <- struct{}{} {
		if <-kv.begun; p.Waiting() == 0 {
			break
		}
		transactions++
	}
	kv.release <- struct{}{}
	wg.Wait()
	// Alone; the first of 1; 1 and 2 and 3; 3 and 1.
	if transactions++; transactions != 4 {
		t.Errorf("%d transactions, want 4", transactions)
	}
	for i, want := range []outcome{committed, conflicted, committed, moved, committed, conflicted, conflicted} {
		a, fenceRevision := attempts[i], rev
		if i == 3 {
			fenceRevision--
		}
		if got := a.judge(fenceRevision); got != want {
			t.Errorf("%d: %+v is outcome %d, want %d", i, a, got, want)
		}
		if asks := asked[i].getOnFailure; (a.object != nil) != (asks && i == 1) {
			t.Errorf("%d: found %v", i, a.object)
		}
	}
	if got := attempts[1].object; got != nil && string(got.Value) != "taken" {
		t.Errorf("found %q", got.Value)
	}
	for i, want := range []string{"alone", "first", "", "new"} {
		found, err := testEtcd.Get(t.Context(), key(i))
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Kvs) == 0 != (want == "") || len(found.Kvs) > 0 && string(found.Kvs[0].Value) != want {
			t.Errorf("%d is %v, want %q", i, found.Kvs, want)
		}
		if i != 2 && len(found.Kvs) > 0 && attempts[map[int]int{0: 0, 1: 2, 3: 4}[i]].revision != found.Kvs[0].ModRevision {
			t.Errorf("%d was written at %d, and the writer was told otherwise", i, found.Kvs[0].ModRevision)
		}
	}
}

func TestPutFits(t *testing.T) {
	many := make([]put, maxPuts-1)
	for i := range many {
		many[i] = put{key: fmt.Sprint(i)}
	}
	large := []put{{key: "large", value: make([]byte, maxPutBytes-1)}}
	for name, test := range map[string]struct {
		batch []put
		next  put
		want  bool
	}{
		"the last":      {many, put{key: "x"}, true},
		"one more":      {append(many, put{key: "x"}), put{key: "y"}, false},
		"the same":      {many, put{key: "3"}, false},
		"still small":   {large, put{key: "x", value: []byte("x")}, true},
		"now too large": {large, put{key: "x", value: []byte("xx")}, false},
	} {
		if got := putFits(test.batch, test.next); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Concurrent rewrites through a store share transactions, and every watch sees each of them.
func TestRewritesShareTransactions(t *testing.T) {
	w := newWorld(t)
	old, _ := w.widgetStore(widgetsV1, widgetsV1, false)
	w.permit(widgets, encV1)
	const n = 200
	key := func(i int) string { return fmt.Sprintf("/example.com/widgets/w%d", i) }
	for i := range n {
		if err := old.Create(t.Context(), key(i), widget(widgetsV1, fmt.Sprint("w", i), "s"), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := w.widgetStore(widgetsV2, widgetsV2, true)
	w.permit(widgets, encV2)
	from := fmt.Sprint(w.revision())
	watches := func() watch.Interface {
		seen, err := s.Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: from, Predicate: storage.Everything, Recursive: true})
		if err != nil {
			t.Error(err)
			return watch.NewEmptyWatch()
		}
		return seen
	}
	seen := watches()
	told := make(chan map[string]bool)
	go func() {
		all := map[string]bool{}
		for len(all) < n && !t.Failed() {
			e, ok := <-seen.ResultChan()
			if !ok {
				// The watch cache ends watches that fall behind. What they have seen comes again.
				seen = watches()
				continue
			}
			if o, err := meta.Accessor(e.Object); err == nil && e.Type == watch.Modified {
				all[o.GetName()+" "+o.GetResourceVersion()] = true
			}
		}
		seen.Stop()
		told <- all
	}()
	before := w.revision()
	versions := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			out := emptyWidget(widgetsV2)
			if err := s.GuaranteedUpdate(Rewriting(t.Context()), key(i), out, false, nil, unchanged, nil); err != nil {
				t.Error(err)
				return
			}
			versions[i] = out.GetName() + " " + out.GetResourceVersion()
		})
	}
	wg.Wait()
	if used := w.revision() - before; used >= n {
		t.Errorf("%d rewrites took %d transactions", n, used)
	}
	all := <-told
	for i, version := range versions {
		if !all[version] {
			t.Errorf("no event of %s", version)
		}
		if stored, _ := w.storedAs(fmt.Sprint("w", i)); stored != string(encV2) {
			t.Errorf("%d is stored as %s", i, stored)
		}
	}
}
