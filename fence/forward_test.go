package fence

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
)

// flip is one server on which a CRD's storage version changes from v1 to v2: its fence with the
// report, and the stores of both served versions.
type flip struct {
	*world
	old storage.Interface // serves v1 and stores v1
}

func newFlip(t *testing.T, cached bool) *flip {
	t.Helper()
	w := newWorld(t)
	s, _ := w.widgetStore(widgetsV1, widgetsV1, cached)
	w.permit(widgets, encV1)
	must(t, s.Create(t.Context(), "/example.com/widgets/existing", widget(widgetsV1, "existing", "s"), nil, 0))
	return &flip{world: w, old: s}
}

// waitLong makes calls wait for a newer store for longer than stepUntil moves the clock.
func (f *flip) waitLong() { f.fence.forwardTimeout = time.Hour }

func (f *flip) buildNew() {
	f.Helper()
	f.widgetStore(widgetsV1, widgetsV2, false)
	f.widgetStore(widgetsV2, widgetsV2, false)
}

// wantForwarded creates and updates objects through the old store: the answers must be in its
// version, and the objects must be stored in the new one.
func (f *flip) wantForwarded() {
	f.Helper()
	out := emptyWidget(widgetsV1)
	if err := f.old.Create(f.Context(), "/example.com/widgets/new", widget(widgetsV1, "new", "m"), out, 0); err != nil {
		f.Fatalf("create through the old store: %v", err)
	}
	if v, size := f.storedAs("new"); v != string(encV2) || size != "m" {
		f.Errorf("created: stored as %q with size %q, want %s with m", v, size, encV2)
	}
	if out.GetAPIVersion() != string(encV1) || out.GetResourceVersion() == "" {
		f.Errorf("created: answered as %s at %q, want %s and a revision", out.GetAPIVersion(), out.GetResourceVersion(), encV1)
	}
	out = emptyWidget(widgetsV1)
	runs := 0
	err := f.old.GuaranteedUpdate(f.Context(), "/example.com/widgets/existing", out, false, nil,
		func(in runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			runs++
			if v := in.GetObjectKind().GroupVersionKind().Version; v != "v1" {
				f.Errorf("tryUpdate got an object of version %s, want v1", v)
			}
			return setSize("l")(in, res)
		}, nil)
	if err != nil {
		f.Fatalf("update through the old store: %v", err)
	}
	if v, size := f.storedAs("existing"); v != string(encV2) || size != "l" {
		f.Errorf("updated: stored as %q with size %q, want %s with l", v, size, encV2)
	}
	if out.GetAPIVersion() != string(encV1) || runs < 2 {
		f.Errorf("updated: answered as %s after %d runs, want %s after a run on each store", out.GetAPIVersion(), runs, encV1)
	}
}

func TestForward(t *testing.T) {
	for _, cached := range []bool{false, true} {
		name := map[bool]string{false: "uncached", true: "cached"}[cached]
		t.Run(name+"/the report was known to have moved", func(t *testing.T) {
			f := newFlip(t, cached)
			f.buildNew()
			f.permit(widgets, encV2)
			f.wantForwarded()
		})
		t.Run(name+"/the transaction finds out", func(t *testing.T) {
			f := newFlip(t, cached)
			f.waitLong()
			f.buildNew()
			rev := f.report(widgets, by(self, encV2))
			done := f.waits(func() error {
				return f.old.Create(f.Context(), "/example.com/widgets/first", widget(widgetsV1, "first", "m"), nil, 0)
			})
			f.permits.grant(widgets, encV2, rev)
			f.stepUntil(done)
			f.wantForwarded()
		})
	}
}

// TestForwardWithoutTheCachedObject: the cached object that a caller gives to an update is used by
// the store that it calls only. The newer store, to which the update is forwarded, begins with the
// object in etcd.
func TestForwardWithoutTheCachedObject(t *testing.T) {
	f := newFlip(t, false)
	f.buildNew()
	const key = "/example.com/widgets/existing"
	cached := emptyWidget(widgetsV1)
	must(t, f.old.Get(t.Context(), key, storage.GetOptions{}, cached))
	must(t, f.old.GuaranteedUpdate(t.Context(), key, emptyWidget(widgetsV1), false, nil, setSize("m"), nil))
	f.permit(widgets, encV2)
	var seen []string
	err := f.old.GuaranteedUpdate(t.Context(), key, emptyWidget(widgetsV1), false, nil,
		func(in runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
			seen = append(seen, sizeOf(in.(*unstructured.Unstructured)))
			return setSize("l")(in, res)
		}, cached)
	if err != nil || !slices.Equal(seen, []string{"s", "m"}) {
		t.Errorf("%v, computed from %v, want from the cached s and then from m", err, seen)
	}
}

// waits starts a call in a goroutine, and returns when it waits for a newer store.
func (f *flip) waits(call func() error) <-chan error {
	f.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	eventually(f, "the call to wait", func() bool {
		select {
		case err := <-done:
			f.Fatalf("the call does not wait: %v", err)
		default:
		}
		return f.clock.Waiters() == 2 // until it looks again, and until it gives up
	})
	return done
}

// stepUntil moves the clock until the call ends, which must succeed.
func (f *flip) stepUntil(done <-chan error) {
	f.Helper()
	eventually(f, "the call to end", func() bool {
		select {
		case err := <-done:
			if err != nil {
				f.Fatalf("call: %v", err)
			}
			return true
		default:
			f.clock.Step(recheck)
			return false
		}
	})
}

// TestNewestStoreAheadOfTheReport: the storage version goes from v1 to v2 and back to v1. The
// newest store writes v1, and the server still reports v2. There is no newer store to wait for, so
// the call waits for the report.
func TestNewestStoreAheadOfTheReport(t *testing.T) {
	f := newFlip(t, false)
	f.waitLong()
	f.buildNew()
	f.permit(widgets, encV2)
	newest, _ := f.widgetStore(widgetsV1, widgetsV1, false)
	done := f.waits(func() error {
		return newest.Create(f.Context(), "/example.com/widgets/new", widget(widgetsV1, "new", "m"), nil, 0)
	})
	f.permit(widgets, encV1)
	f.stepUntil(done)
	if v, _ := f.storedAs("new"); v != string(encV1) {
		t.Errorf("stored as %q, want %s", v, encV1)
	}
}

func TestForwardWaitsForTheNewerStore(t *testing.T) {
	f := newFlip(t, false)
	f.waitLong()
	f.permit(widgets, encV2)
	f.widgetStore(widgetsV2, widgetsV2, false) // another served version
	done := f.waits(func() error {
		return f.old.GuaranteedUpdate(f.Context(), "/example.com/widgets/existing", emptyWidget(widgetsV1), false, nil, setSize("l"), nil)
	})
	f.widgetStore(widgetsV1, widgetsV2, false)
	f.stepUntil(done)
	if v, size := f.storedAs("existing"); v != string(encV2) || size != "l" {
		t.Errorf("stored as %q with size %q", v, size)
	}
}

// TestForwardTwice: the store that was built after the called one also writes v1, and is superseded
// as well. The request waits for the store of v2.
func TestForwardTwice(t *testing.T) {
	f := newFlip(t, false)
	f.waitLong()
	f.permit(widgets, encV2)
	f.widgetStore(widgetsV1, widgetsV1, false) // built for a change of the schema only
	done := f.waits(func() error {
		return f.old.Create(f.Context(), "/example.com/widgets/new", widget(widgetsV1, "new", "m"), nil, 0)
	})
	f.widgetStore(widgetsV1, widgetsV2, false)
	f.stepUntil(done)
	if v, _ := f.storedAs("new"); v != string(encV2) {
		t.Errorf("stored as %q, want %s", v, encV2)
	}
}

// TestForwardToADestroyedStore: a store that is destroyed while a call is forwarded to it can still
// finish the call.
func TestForwardToADestroyedStore(t *testing.T) {
	f := newFlip(t, false)
	s, destroy := f.widgetStore(widgetsV1, widgetsV2, true)
	f.permit(widgets, encV2)
	raw := s.(*forwarder).self.raw
	destroy()
	if err := raw.Create(t.Context(), "/example.com/widgets/new", widget(widgetsV1, "new", "m"), nil, 0); err != nil {
		t.Fatalf("create: %v", err)
	}
}

func TestForwardGivesUp(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(f *flip, cancel context.CancelFunc)
	}{
		{"after the timeout", func(f *flip, _ context.CancelFunc) { f.clock.Step(defaultForwardTimeout) }},
		{"when the request ends", func(_ *flip, cancel context.CancelFunc) { cancel() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFlip(t, false)
			f.widgetStore(widgetsV2, widgetsV2, false) // v1 is not served any more
			f.permit(widgets, encV2)
			before := f.stored("/example.com/widgets")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := f.waits(func() error {
				return f.old.Create(ctx, "/example.com/widgets/new", widget(widgetsV1, "new", "m"), nil, 0)
			})
			tc.end(f, cancel)
			wantUnavailable(t, <-done)
			if got := f.stored("/example.com/widgets"); got != before {
				t.Errorf("something was written:\n%s", got)
			}
		})
	}
}

func TestForwardKeepsTheNewerStoresErrors(t *testing.T) {
	f := newFlip(t, false)
	f.buildNew()
	f.permit(widgets, encV2)
	err := f.old.Create(t.Context(), "/example.com/widgets/existing", widget(widgetsV1, "existing", "m"), nil, 0)
	if !storage.IsExist(err) {
		t.Errorf("creating what exists: got %v, want AlreadyExists", err)
	}
	refused := errors.New("refused")
	err = f.old.GuaranteedUpdate(t.Context(), "/example.com/widgets/existing", emptyWidget(widgetsV1), false, nil,
		func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) { return nil, nil, refused }, nil)
	if !errors.Is(err, refused) {
		t.Errorf("got %v, want the error of tryUpdate", err)
	}
}

// TestSupersededStoreReadsAndDeletes: reads and deletes are answered by the old store; they are not
// forwarded.
func TestSupersededStoreReadsAndDeletes(t *testing.T) {
	f := newFlip(t, true)
	f.permit(widgets, encV2)
	out := emptyWidget(widgetsV1)
	if err := f.old.Get(t.Context(), "/example.com/widgets/existing", storage.GetOptions{}, out); err != nil || out.GetName() != "existing" {
		t.Errorf("get: %v, %q", err, out.GetName())
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(widgetsV1.WithKind("WidgetList"))
	opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	eventually(t, "the cache", func() bool { return f.old.ReadinessCheck() == nil })
	if err := f.old.GetList(t.Context(), "/example.com/widgets/", opts, list); err != nil || len(list.Items) != 1 {
		t.Errorf("list: %v, %d items", err, len(list.Items))
	}
	err := f.old.Delete(t.Context(), "/example.com/widgets/existing", emptyWidget(widgetsV1), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err != nil {
		t.Errorf("delete: %v", err)
	}
}

func TestNewest(t *testing.T) {
	w := newWorld(t)
	if _, ok := w.fence.Newest(widgets); ok {
		t.Error("Newest found a store before one was built")
	}
	_, destroyOld := w.widgetStore(widgetsV1, widgetsV1, false)
	w.widgetStore(widgetsV2, widgetsV1, false)
	wantNewest := func(enc agree.Encoding, served string) {
		t.Helper()
		got, ok := w.fence.Newest(widgets)
		if !ok || got.Encoding != enc || got.ServedVersion != served {
			t.Errorf("Newest: %s serving %s, want %s serving %s", got.Encoding, got.ServedVersion, enc, served)
		}
	}
	wantNewest(encV1, "example.com/v1")
	w.widgetStore(widgetsV1, widgetsV2, false)
	wantNewest(encV2, "example.com/v1")
	_, destroyNew := w.widgetStore(widgetsV2, widgetsV2, false)
	wantNewest(encV2, "example.com/v2")
	got, _ := w.fence.Newest(widgets)
	if want := w.prefix + "/example.com/widgets/"; got.GroupResource != widgets || got.Prefix != want {
		t.Errorf("Newest: %s below %s, want %s below %s", got.GroupResource, got.Prefix, widgets, want)
	}
	key, _ := w.fence.FenceKey(widgets)
	if want := w.prefix + "/storageversions/example.com.widgets"; key != want {
		t.Errorf("FenceKey: %s, want %s", key, want)
	}
	if got.Codec == nil || got.Transformer == nil {
		t.Errorf("Newest: codec %v, transformer %v", got.Codec, got.Transformer)
	}
	destroyNew()
	destroyNew()
	wantNewest(encV2, "example.com/v1")
	destroyOld()
	wantNewest(encV2, "example.com/v1")
}
