package fence

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// A cache of a custom resource's version exists, and decodes the objects written, from the
// first read that it answers, or the first update, which begins from the object in the cache.
func TestCachesOfCustomResourcesAreBuiltWhenUsed(t *testing.T) {
	w, streams := countingWorld(t)
	w.permit(widgets, encV2)
	v1, destroyV1 := w.widgetStore(widgetsV1, widgetsV2, true)
	v2, destroyV2 := w.widgetStore(widgetsV2, widgetsV2, true)

	key := "/example.com/widgets/w"
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	must(v1.Create(t.Context(), key, widget(widgetsV1, "w", "1"), nil, 0))
	got := emptyWidget(widgetsV1)
	must(v1.Get(t.Context(), key, storage.GetOptions{}, got))
	if size, _, _ := unstructured.NestedString(got.Object, "spec", "size"); size != "1" {
		t.Errorf("read %v", got.Object)
	}
	if n := streams.open.Load(); n != 0 {
		t.Errorf("%d caches were built by creates and by reads that no cache answers", n)
	}

	// The first watch waits for its cache, and sees all that comes after.
	watcher, err := v1.Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: got.GetResourceVersion(), Predicate: storage.Everything, Recursive: true})
	must(err)
	defer watcher.Stop()
	must(v2.GuaranteedUpdate(t.Context(), key, emptyWidget(widgetsV2), false, nil, setSize("3"), nil))
	event := <-watcher.ResultChan()
	seen := event.Object
	if cached, ok := seen.(runtime.CacheableObject); ok {
		seen = cached.GetObject()
	}
	if u, ok := seen.(*unstructured.Unstructured); !ok {
		t.Fatalf("saw %s %+v", event.Type, seen)
	} else if size, _, _ := unstructured.NestedString(u.Object, "spec", "size"); size != "3" {
		t.Errorf("saw %v", event)
	}
	eventually(t, "a cache for each version that is used", func() bool { return streams.open.Load() == 2 })
	must(v1.Delete(t.Context(), key, emptyWidget(widgetsV1), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))

	destroyV1()
	destroyV2()
	eventually(t, "the caches to end with their stores", func() bool { return streams.open.Load() == 0 })
}

// A store that was destroyed unread builds no cache any more.
func TestNoCacheAfterTheEnd(t *testing.T) {
	w := newWorld(t)
	s, destroy := w.widgetStore(widgetsV1, widgetsV1, true)
	destroy()
	list := &unstructured.UnstructuredList{}
	wantUnavailable(t, s.GetList(t.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	wantUnavailable(t, s.ReadinessCheck())
}
