package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
)

// addCRDs creates n CRDs with one version, and returns them as an informer has them.
func (w *world) addCRDs(n int) []*apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crds := make([]*apiextensionsv1.CustomResourceDefinition, n)
	w.Quietly(func() {
		for i := range crds {
			crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("r%d.example.com", i)}}
			crd.Spec, crd.Status = accepted(fmt.Sprintf("r%d", i), "v1", "v1")
			must(w.t, w.client.Create(w.t.Context(), crd))
			crds[i] = crd
		}
	})
	return crds
}

func numbered(i int) schema.GroupResource {
	return schema.GroupResource{Group: "example.com", Resource: fmt.Sprintf("r%d", i)}
}

// count returns how many calls of each kind there were since the last call of count or Took.
func (w *world) count() map[string]int {
	counts := map[string]int{}
	for _, call := range strings.Split(w.Took(), "; ") {
		if i := strings.LastIndex(call, " "); !strings.HasPrefix(call, "list ") && i > 0 {
			call = call[:i]
		}
		if call != "" {
			counts[call]++
		}
	}
	return counts
}

// TestBatch: the member makes as few calls as DESIGN 3.1.2 and 3.1.3 allow, in their order.
func TestBatch(t *testing.T) {
	const n = 100
	w := newWorld(t, nil)
	w.register()
	for _, crd := range w.addCRDs(n) {
		w.m.ObserveCRD(crd)
	}
	placed := 0
	w.Before = func(call string) error {
		switch {
		case strings.HasPrefix(call, "update status StorageVersion"):
			placed++
		case strings.HasSuffix(call, "DefinitionList") && placed < n:
			t.Errorf("the CRDs are read after %d of %d reports", placed, n)
		}
		if len(w.m.Snapshot()) > 0 && w.status(numbered(0)).Open {
			t.Errorf("open before the CRDs were read: at %s", call)
		}
		return nil
	}
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 {
		t.Errorf("Step: %v, %v", wait, err)
	}
	w.Before = nil
	want := map[string]int{"list StorageVersionList": 2, "list LeaseList": 2, "create StorageVersion": n, "update status StorageVersion": n, "list CustomResourceDefinitionList": 1}
	if got := w.count(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("calls %v, want %v", got, want)
	}
	for i := range n {
		w.expectOpen(numbered(i), v1)
	}

	t.Run("a few of many are reported without lists of all", func(t *testing.T) {
		lose := func(k int) {
			for i := range k {
				w.setReports(numbered(i), agree.Report{Server: "other", Encoding: v1, Decodable: []string{string(v1)}})
				w.observe(numbered(i))
			}
			w.Took()
			w.settle()
		}
		lose(n/listShare - 1)
		if got := w.count(); got["list StorageVersionList"] != 0 || got["get StorageVersion"] != n/listShare-1 {
			t.Errorf("calls %v", got)
		}
		lose(n / listShare)
		if got := w.count(); got["list StorageVersionList"] != 1 || got["get StorageVersion"] != 0 || got["list CustomResourceDefinitionList"] != 1 {
			t.Errorf("calls %v", got)
		}
	})
	t.Run("all StorageVersions were deleted", func(t *testing.T) {
		w.Quietly(func() {
			must(t, w.client.DeleteAllOf(t.Context(), &v1alpha1.StorageVersion{}))
		})
		w.m.ObserveStorageVersions(nil, 1<<40)
		w.Took()
		if _, err := w.m.Step(t.Context()); err == nil {
			t.Error("reported at a revision before the loss") // the fake API's revisions are lower than that
		}
		if got := w.count(); got["list CustomResourceDefinitionList"] != 1 || got["get CustomResourceDefinition"] != 0 {
			t.Errorf("calls %v, want one read of the CRDs before", got)
		}
	})
}

// TestBatchChecks: a resource whose CRD changes while the batch is reported stays closed for writes.
func TestBatchChecks(t *testing.T) {
	w := newWorld(t, nil)
	w.register()
	crds := w.addCRDs(20)
	for _, crd := range crds {
		w.m.ObserveCRD(crd)
	}
	w.Before = func(call string) error {
		if !strings.HasSuffix(call, "DefinitionList") {
			return nil
		}
		w.Before = nil
		w.Quietly(func() {
			crds[0].Spec.Versions = append(crds[0].Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2", Served: true, Storage: true})
			crds[0].Spec.Versions[0].Storage = false
			must(t, errors.Join(w.client.Update(t.Context(), crds[0]), w.client.Delete(t.Context(), crds[1])))
		})
		return nil
	}
	if _, err := w.m.Step(t.Context()); !errors.Is(err, errStale) {
		t.Errorf("Step: %v", err)
	}
	for i := range crds {
		if open := w.status(numbered(i)).Open; open != (i > 1) {
			t.Errorf("%s: open %v", numbered(i), open)
		}
	}
	w.settle()
	w.expectOpen(numbered(0), v2)
	if reports, _ := w.reports(numbered(1)); len(reports) != 0 {
		t.Errorf("reports %v of a resource that is gone", reports)
	}

	t.Run("the CRDs cannot be read", func(t *testing.T) {
		w := newWorld(t, nil)
		w.register()
		for _, crd := range w.addCRDs(20) {
			w.m.ObserveCRD(crd)
		}
		w.Before = func(call string) error {
			if strings.HasSuffix(call, "DefinitionList") {
				return errBroken
			}
			return nil
		}
		if _, err := w.m.Step(t.Context()); !errors.Is(err, errBroken) {
			t.Errorf("Step: %v", err)
		}
		if w.status(numbered(7)).Open {
			t.Error("open without a check")
		}
		w.Before = nil
		w.settle()
		w.expectOpen(numbered(7), v1)
	})
}

// TestGather: CRDs whose events come one by one at the start are reported as one batch; later ones are
// reported at once.
func TestGather(t *testing.T) {
	known := false
	w := newWorld(t, nil, func(c *Config) { c.CustomResourcesKnown = func() bool { return known } })
	w.register()
	for _, crd := range w.addCRDs(20) {
		w.m.ObserveCRD(crd)
		if wait, err := w.m.Step(t.Context()); err != nil || wait <= 0 || wait > gatherTime {
			t.Fatalf("Step: %v, %v, want to wait for more", wait, err)
		}
	}
	if calls := w.Took(); calls != "" {
		t.Errorf("calls %s", calls)
	}
	w.clock.Step(gatherTime)
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 {
		t.Errorf("Step: %v, %v", wait, err)
	}
	if got := w.count(); got["list StorageVersionList"] != 1 || got["create StorageVersion"] != 20 {
		t.Errorf("calls %v, want one batch", got)
	}
	known = true
	w.m.ObserveCRD(w.setCRD("v1"))
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 {
		t.Errorf("Step: %v, %v", wait, err)
	}
	w.expectOpen(widgets, v1)
}

// TestGatherBesideStore: at the start a store asks for a custom resource, whose CRD the member then
// reads, and the read hangs. The CRD whose event comes next is reported without waiting for that.
func TestGatherBesideStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, func(c *Config) {
			c.Clock = clock.RealClock{} // the clock of the synctest bubble
			c.CustomResourcesKnown = func() bool { return false }
			c.Workers = 4
		})
		crds := w.addCRDs(2)
		read, proceed := make(chan struct{}), make(chan struct{})
		w.Before = func(call string) error {
			if strings.HasPrefix(call, "get CustomResourceDefinition "+crds[0].Name) {
				select {
				case read <- struct{}{}:
				case <-proceed:
				}
				<-proceed
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.m.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		synctest.Wait()
		if _, err := w.m.Revision(ctx, numbered(0), v1); err == nil {
			t.Error("a store may write before the report")
		}
		<-read
		w.m.ObserveCRD(crds[0])
		synctest.Wait()
		w.m.ObserveCRD(crds[1])
		time.Sleep(time.Second)
		synctest.Wait()
		if !w.status(numbered(1)).Open {
			t.Errorf("after a second: %s", w.status(numbered(1)))
		}
		close(proceed)
		time.Sleep(time.Second)
		synctest.Wait()
		w.expectOpen(numbered(0), v1)
	})
}

// TestWorkers: at most Workers reports are under way at a time, however many goroutines call Step and
// Report.
func TestWorkers(t *testing.T) {
	const n = 40
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, func(c *Config) { c.Workers = workers })
			w.register()
			for _, crd := range w.addCRDs(n) {
				w.m.ObserveCRD(crd)
			}
			var mu sync.Mutex
			under := 0
			proceed := make(chan struct{})
			w.Before = func(call string) error {
				if !strings.HasPrefix(call, "get StorageVersion") {
					return nil
				}
				mu.Lock()
				under++
				mu.Unlock()
				<-proceed
				mu.Lock()
				under--
				mu.Unlock()
				return nil
			}
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					if err := w.m.Report(t.Context(), numbered(i)); err != nil {
						t.Errorf("Report: %v", err)
					}
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			synctest.Wait()
			mu.Lock()
			if under != workers {
				t.Errorf("%d reports are under way at once, want %d", under, workers)
			}
			mu.Unlock()
			cancel()
			// An attempt that waits for a free worker ends with its context.
			late := w.setCRD("v1")
			w.m.ObserveCRD(late)
			if err := w.m.Report(ctx, widgets); !errors.Is(err, context.Canceled) {
				t.Errorf("Report: %v", err)
			}
			close(proceed)
			wg.Wait()
			for i := range n {
				w.expectOpen(numbered(i), v1)
			}
		})
	}
}

// another returns another member that uses the same API.
func (w *world) another(seed uint64) *Member {
	w.t.Helper()
	cfg := w.m.cfg
	cfg.Random = rand.New(rand.NewPCG(seed, 3))
	m, err := New(cfg)
	must(w.t, err)
	must(w.t, m.SetBuiltins(nil))
	return m
}

// TestDepartDuringBatch: a batch that fails while the server departs releases each of its resources
// exactly once.
func TestDepartDuringBatch(t *testing.T) {
	for _, at := range []string{"list StorageVersionList", "create StorageVersion", "list LeaseList"} {
		w := newWorld(t, nil)
		w.register()
		for _, crd := range w.addCRDs(manyResources) {
			w.m.ObserveCRD(crd)
		}
		w.Before = func(call string) error {
			if !strings.HasPrefix(call, at) {
				return nil
			}
			ended, end := context.WithCancel(t.Context())
			end()
			if err := w.m.Depart(ended); err == nil {
				t.Errorf("%s: departed with reports under way", at)
			}
			return errBroken
		}
		if _, err := w.m.Step(t.Context()); err == nil {
			t.Errorf("%s: no error", at)
		}
		w.Before = nil
		if err := w.m.Depart(t.Context()); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
}
