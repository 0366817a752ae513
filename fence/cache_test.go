package fence

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
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

// sizes returns the sizes of the widgets in a list, which the watch cache answers.
func sizes(t *testing.T, s storage.Interface) map[string]string {
	t.Helper()
	list := newWidgetList(widgetsV2)
	must(t, s.GetList(t.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	found := map[string]string{}
	for _, item := range list.Items {
		if item.GroupVersionKind().GroupVersion() != widgetsV2 {
			t.Errorf("%s is of %s", item.GetName(), item.GetAPIVersion())
		}
		found[item.GetName()] = sizeOf(&item)
	}
	return found
}

// next returns the type of the watch's next event, and the size of its widget.
func next(t *testing.T, w watch.Interface) (watch.EventType, string) {
	t.Helper()
	event := <-w.ResultChan()
	object := event.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("saw %s %+v", event.Type, object)
	}
	return event.Type, sizeOf(u)
}

// TestCacheIsHandedOn: a change of the storage version alone keeps the watch cache and its watches;
// writes go to the new store.
func TestCacheIsHandedOn(t *testing.T) {
	w, streams := countingWorld(t)
	w.permit(widgets, encV1)
	before, destroyBefore := w.widgetStore(widgetsV2, widgetsV1, true)
	key := "/example.com/widgets/w"
	must(t, before.Create(t.Context(), key, widget(widgetsV2, "w", "1"), nil, 0))
	watcher, err := before.Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	must(t, err)
	defer watcher.Stop()
	seen := func() (watch.EventType, string) { return next(t, watcher) }
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

// otherwise converts as renaming does, but for the store it is another conversion.
type otherwise struct{ renaming }

// TestCacheIsNotHandedOn: a store that decodes in another way gets a cache of its own.
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

// TestReadingsDiffer: two stores share a cache only if all parts of their reading are equal, such
// as the fields for selectors.
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

var (
	widgets   = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	widgetsV1 = schema.GroupVersion{Group: "example.com", Version: "v1"}
	widgetsV2 = schema.GroupVersion{Group: "example.com", Version: "v2"}
)

const (
	encV1 agree.Encoding = "example.com/v1"
	encV2 agree.Encoding = "example.com/v2"
)

// widgetCodec returns a codec as apiextensions makes it for a served and a storage version.
func widgetCodec(served, stored schema.GroupVersion) runtime.Codec {
	return versioning.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme,
		renaming{}, unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper(),
		unstructuredscheme.NewUnstructuredDefaulter(), stored, served, "crdRESTOptions")
}

// renaming converts by changing apiVersion only.
type renaming struct{}

func (renaming) Convert(in, out, _ any) error {
	to := out.(*unstructured.Unstructured)
	gvk := to.GroupVersionKind()
	to.SetUnstructuredContent(in.(*unstructured.Unstructured).DeepCopy().Object)
	to.SetGroupVersionKind(gvk)
	return nil
}

func (renaming) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	out := in.DeepCopyObject()
	gvk, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{in.GetObjectKind().GroupVersionKind()})
	if !ok {
		return nil, fmt.Errorf("%s is not for %s", gv.Identifier(), in.GetObjectKind().GroupVersionKind())
	}
	out.GetObjectKind().SetGroupVersionKind(gvk)
	return out, nil
}

func (renaming) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// widgetStore builds the store of one served version; a test may call destroy before its end.
func (w *world) widgetStore(served, stored schema.GroupVersion, cached bool) (s storage.Interface, destroy func()) {
	w.Helper()
	return w.widgetStoreWith(widgetCodec(served, stored), served, cached)
}

func (w *world) widgetStoreWith(codec runtime.Codec, served schema.GroupVersion, cached bool) (s storage.Interface, destroy func()) {
	w.Helper()
	s, destroy, err := w.decorate(w.config(widgets, codec), "/example.com/widgets", cached,
		func() runtime.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(served.WithKind("Widget"))
			return u
		},
		func() runtime.Object { return newWidgetList(served) })
	if err != nil {
		w.Fatalf("decorator: %v", err)
	}
	destroy = sync.OnceFunc(destroy)
	w.Cleanup(destroy)
	return s, destroy
}

func newWidgetList(gv schema.GroupVersion) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(gv.WithKind("WidgetList"))
	return l
}

func widget(gv schema.GroupVersion, name, size string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": size}}}
	u.SetGroupVersionKind(gv.WithKind("Widget"))
	u.SetName(name)
	return u
}

func emptyWidget(gv schema.GroupVersion) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gv.WithKind("Widget"))
	return u
}

// setSize returns a tryUpdate that may be called several times.
func setSize(size string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		u := in.(*unstructured.Unstructured)
		return u, unstructured.SetNestedField(u.Object, size, "spec", "size")
	})
}

// storedAs returns the apiVersion and the size in the stored bytes of a widget; "" if there is
// none.
func (w *world) storedAs(name string) (apiVersion, size string) {
	w.Helper()
	resp, err := w.fence.client.Get(w.Context(), w.prefix+"/example.com/widgets/"+name)
	must(w, err)
	if len(resp.Kvs) == 0 {
		return "", ""
	}
	u := &unstructured.Unstructured{}
	must(w, u.UnmarshalJSON(resp.Kvs[0].Value))
	return u.GetAPIVersion(), sizeOf(u)
}

// TestCachesOfCustomResourcesAreBuiltWhenUsed: the watch cache of a custom resource's version is
// built (and begins to decode all objects) at the first read that a cache answers, or at the first
// update, which begins with the cached object.
func TestCachesOfCustomResourcesAreBuiltWhenUsed(t *testing.T) {
	w, streams := countingWorld(t)
	w.permit(widgets, encV2)
	v1, destroyV1 := w.widgetStore(widgetsV1, widgetsV2, true)
	v2, destroyV2 := w.widgetStore(widgetsV2, widgetsV2, true)

	key := "/example.com/widgets/w"
	must(t, v1.Create(t.Context(), key, widget(widgetsV1, "w", "1"), nil, 0))
	got := emptyWidget(widgetsV1)
	must(t, v1.Get(t.Context(), key, storage.GetOptions{}, got))
	if sizeOf(got) != "1" {
		t.Errorf("read %v", got.Object)
	}
	if n := streams.open.Load(); n != 0 {
		t.Errorf("%d caches were built by creates and by reads that no cache answers", n)
	}

	// The first watch waits until its cache is built, and gets all later events.
	watcher, err := v1.Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: got.GetResourceVersion(), Predicate: storage.Everything, Recursive: true})
	must(t, err)
	defer watcher.Stop()
	must(t, v2.GuaranteedUpdate(t.Context(), key, emptyWidget(widgetsV2), false, nil, setSize("3"), nil))
	if what, size := next(t, watcher); size != "3" {
		t.Errorf("saw %s of size %s", what, size)
	}
	eventually(t, "a cache for each version that is used", func() bool { return streams.open.Load() == 2 })
	must(t, v1.Delete(t.Context(), key, emptyWidget(widgetsV1), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))

	destroyV1()
	destroyV2()
	eventually(t, "the caches to end with their stores", func() bool { return streams.open.Load() == 0 })
}

// TestNoCacheAfterTheEnd: a store that was destroyed before its first read does not build a cache
// any more.
func TestNoCacheAfterTheEnd(t *testing.T) {
	w := newWorld(t)
	s, destroy := w.widgetStore(widgetsV1, widgetsV1, true)
	destroy()
	list := &unstructured.UnstructuredList{}
	wantUnavailable(t, s.GetList(t.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	wantUnavailable(t, s.ReadinessCheck())
}

func TestEncodingOf(t *testing.T) {
	info, _ := runtime.SerializerInfoForMediaType(builtinCodecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	internal := schema.GroupVersion{Group: "apps", Version: runtime.APIVersionInternal}
	for _, tc := range []struct {
		name  string
		codec runtime.Encoder
		want  agree.Encoding
	}{
		{"a storage factory's, core group", builtinCodec(corev1.SchemeGroupVersion), "v1"},
		{"a storage factory's", builtinCodec(v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"one group version", builtinCodecs.EncoderForVersion(info.Serializer, v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"a custom resource's", widgetCodec(widgetsV1, widgetsV2), encV2},
		{"no versioning", info.Serializer, ""},
		{"no encoding", runtime.NoopEncoder{}, ""},
		{"internal", builtinCodecs.EncoderForVersion(info.Serializer, internal), ""},
		{"internal versioner", builtinCodecs.EncoderForVersion(info.Serializer, runtime.InternalGroupVersioner), ""},
		{"a list of one version", builtinCodecs.LegacyCodec(v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"a list of versions", builtinCodecs.LegacyCodec(v1alpha1.SchemeGroupVersion, schema.GroupVersion{Group: v1alpha1.GroupName, Version: "v1"}), ""},
		{"an empty list", builtinCodecs.EncoderForVersion(info.Serializer, schema.GroupVersions{}), ""},
		{"disabled versioner", builtinCodecs.EncoderForVersion(info.Serializer, runtime.DisabledGroupVersioner), ""},
	} {
		got, err := EncodingOf(tc.codec)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v, want %q", tc.name, got, err, tc.want)
		}
	}
}

// TestSeveralVersions: where a codec may encode to several versions, the error says so, of one group and of several.
func TestSeveralVersions(t *testing.T) {
	for _, other := range []schema.GroupVersion{{Group: v1alpha1.GroupName, Version: "v1"}, {Group: "billing.example.net", Version: "v1"}} {
		_, err := EncodingOf(builtinCodecs.LegacyCodec(v1alpha1.SchemeGroupVersion, other))
		if err == nil || !strings.Contains(err.Error(), "any of several versions, "+v1alpha1.SchemeGroupVersion.String()+","+other.String()+": have the RESTOptionsGetter set") {
			t.Errorf("beside %s: %v", other, err)
		}
	}
}

func TestCounts(t *testing.T) {
	at := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{ModRevision: rev} }
	object := func(rev int64) kubernetes.PutResponse { return kubernetes.PutResponse{KV: at(rev)} }
	for _, tc := range []struct {
		name string
		got  attempt
		want bool
	}{
		{"committed", attempt{PutResponse: kubernetes.PutResponse{Succeeded: true}}, true},
		{"the object changed", attempt{fence: at(7), PutResponse: object(9)}, true},
		{"the object is gone", attempt{fence: at(7)}, true},
		{"the StorageVersion changed", attempt{fence: at(8), PutResponse: object(3)}, false},
		{"both changed", attempt{fence: at(8), PutResponse: object(9)}, false},
		{"the StorageVersion is gone", attempt{PutResponse: object(3)}, false},
		{"etcd went back in time", attempt{fence: at(6)}, false},
	} {
		if got := tc.got.counts(7); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
