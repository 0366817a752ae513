package fence

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

func countingWorld(t *testing.T) (*world, *watchStreams) {
	t.Helper()
	streams := &watchStreams{}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   testEtcd.Endpoints(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(streams.intercept)},
	})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return newWorldWith(t, client, nil), streams
}

// sizes are those of a list of widgets, which a watch cache answers.
func sizes(t *testing.T, s storage.Interface) map[string]string {
	t.Helper()
	list := newWidgetList(widgetsV2)
	must(t, s.GetList(t.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	found := map[string]string{}
	for _, item := range list.Items {
		if item.GroupVersionKind().GroupVersion() != widgetsV2 {
			t.Errorf("%s is of %s", item.GetName(), item.GetAPIVersion())
		}
		found[item.GetName()], _, _ = unstructured.NestedString(item.Object, "spec", "size")
	}
	return found
}

// A change of the storage version alone keeps the watch cache, and the watches of it; writes
// go by the new store.
func TestCacheIsHandedOn(t *testing.T) {
	w, streams := countingWorld(t)
	w.permit(widgets, encV1)
	before, destroyBefore := w.widgetStore(widgetsV2, widgetsV1, true)
	key := "/example.com/widgets/w"
	must(t, before.Create(t.Context(), key, widget(widgetsV2, "w", "1"), nil, 0))
	watcher, err := before.Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	must(t, err)
	defer watcher.Stop()
	seen := func() (watch.EventType, string) {
		event := <-watcher.ResultChan()
		object := event.Object
		if cached, ok := object.(runtime.CacheableObject); ok {
			object = cached.GetObject()
		}
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("saw %s %+v", event.Type, object)
		}
		size, _, _ := unstructured.NestedString(u.Object, "spec", "size")
		return event.Type, size
	}
	if what, size := seen(); what != watch.Added || size != "1" {
		t.Errorf("saw %s of size %s", what, size)
	}

	w.permit(widgets, encV2)
	after, destroyAfter := w.widgetStore(widgetsV2, widgetsV2, true)
	if got := sizes(t, after); got["w"] != "1" {
		t.Errorf("the new store lists %v", got)
	}
	if n := streams.open.Load(); n != 1 {
		t.Errorf("%d caches watch etcd", n)
	}
	destroyBefore()
	must(t, after.GuaranteedUpdate(t.Context(), key, emptyWidget(widgetsV2), false, nil, setSize("2"), nil))
	if what, size := seen(); what != watch.Modified || size != "2" {
		t.Errorf("the watch from before saw %s of size %s", what, size)
	}
	if in, size := w.storedAs("w"); in != string(encV2) || size != "2" {
		t.Errorf("stored in %s, of size %s", in, size)
	}
	if got := sizes(t, after); got["w"] != "2" {
		t.Errorf("the new store lists %v", got)
	}
	if n := streams.open.Load(); n != 1 {
		t.Errorf("%d caches watch etcd when the old store has ended", n)
	}
	destroyAfter()
	eventually(t, "the cache to end with the last store", func() bool { return streams.open.Load() == 0 })
	if len(w.fence.caches.all) != 0 {
		t.Errorf("%d caches are remembered", len(w.fence.caches.all))
	}
}

// otherwise converts as renaming does, but need not be the same conversion.
type otherwise struct{ renaming }

// A store that reads in another way has a cache of its own.
func TestCacheIsNotHandedOn(t *testing.T) {
	w, streams := countingWorld(t)
	w.permit(widgets, encV2)
	one, _ := w.widgetStore(widgetsV2, widgetsV2, true)
	sizes(t, one)
	codec := versioning.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme,
		otherwise{}, unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper(),
		unstructuredscheme.NewUnstructuredDefaulter(), widgetsV2, widgetsV2, "crdRESTOptions")
	converting, destroy := w.widgetStoreWith(codec, widgetsV2, true)
	sizes(t, converting)
	eventually(t, "two caches of two conversions", func() bool { return streams.open.Load() == 2 })
	destroy()
	eventually(t, "the cache to end with its store", func() bool { return streams.open.Load() == 1 })
	v1, _ := w.widgetStore(widgetsV1, widgetsV2, true)
	eventually(t, "the other version's cache to be filled", func() bool { return v1.ReadinessCheck() == nil })
	eventually(t, "two caches of two versions", func() bool { return streams.open.Load() == 2 })
}

// The fields that select objects are part of how a store reads.
func TestReadingsDiffer(t *testing.T) {
	r := reading{gr: widgets, served: "example.com/v2", fields: []string{"metadata.name"}, decoding: []any{renaming{}}}
	if !r.same(r) {
		t.Error("a reading differs from itself")
	}
	for name, change := range map[string]func(*reading){
		"resource":   func(o *reading) { o.gr = configMaps },
		"version":    func(o *reading) { o.served = "example.com/v1" },
		"prefix":     func(o *reading) { o.prefix = "/elsewhere/" },
		"fields":     func(o *reading) { o.fields = []string{"metadata.name", "spec.size"} },
		"decoding":   func(o *reading) { o.decoding = []any{otherwise{}} },
		"encryption": func(o *reading) { o.transformer = &stamping{} },
		"a function": func(o *reading) { o.decoding = []any{func() {}} },
	} {
		other := r
		if change(&other); r.same(other) {
			t.Errorf("%s: the same", name)
		}
	}
}
