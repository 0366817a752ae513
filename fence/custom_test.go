package fence

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
)

var (
	widgets   = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	widgetsV1 = schema.GroupVersion{Group: "example.com", Version: "v1"}
	widgetsV2 = schema.GroupVersion{Group: "example.com", Version: "v2"}
)

const (
	encV1 agree.Encoding = "example.com/v1"
	encV2 agree.Encoding = "example.com/v2"
)

// widgetCodec is built as apiextensions does it for a served and a storage version.
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

// widgetStore builds the store of one served version; destroy may be called early.
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

// setSize is a tryUpdate that can be run again.
func setSize(size string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		u := in.(*unstructured.Unstructured)
		return u, unstructured.SetNestedField(u.Object, size, "spec", "size")
	})
}

// storedAs returns the apiVersion in the stored bytes of a widget; "" if there is none.
func (w *world) storedAs(name string) (apiVersion, size string) {
	w.Helper()
	resp, err := w.fence.client.Get(w.Context(), w.prefix+"/example.com/widgets/"+name)
	must(w, err)
	if len(resp.Kvs) == 0 {
		return "", ""
	}
	u := &unstructured.Unstructured{}
	must(w, u.UnmarshalJSON(resp.Kvs[0].Value))
	size, _, _ = unstructured.NestedString(u.Object, "spec", "size")
	return u.GetAPIVersion(), size
}
