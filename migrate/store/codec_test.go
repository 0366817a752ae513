package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/api/admissionregistration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"

	"github.com/concord-dev/concord/agree"
)

const (
	oldEncoding agree.Encoding = "admissionregistration.k8s.io/v1beta1"
	newEncoding agree.Encoding = "admissionregistration.k8s.io/v1"
)

var policies = schema.GroupResource{Group: v1.GroupName, Resource: "mutatingadmissionpolicies"}

// typed has codecs of a built-in resource with two versions.
type typed struct{ old, new machinery.Codec }

// newTyped returns the codecs in protobuf.
func newTyped(tb testing.TB) typed {
	tb.Helper()
	return typedIn(tb, func(scheme *machinery.Scheme) machinery.Encoder { return protobuf.NewSerializer(scheme, scheme) })
}

func typedIn(tb testing.TB, format func(*machinery.Scheme) machinery.Encoder) typed {
	tb.Helper()
	scheme := machinery.NewScheme()
	must(tb, v1.AddToScheme(scheme))
	must(tb, v1beta1.AddToScheme(scheme))
	internal := schema.GroupVersion{Group: v1.GroupName, Version: machinery.APIVersionInternal}
	scheme.AddKnownTypes(internal, &v1.MutatingAdmissionPolicy{})
	// Both versions have the same layout.
	must(tb, scheme.AddConversionFunc((*v1beta1.MutatingAdmissionPolicy)(nil), (*v1.MutatingAdmissionPolicy)(nil), func(a, b any, _ conversion.Scope) error {
		*b.(*v1.MutatingAdmissionPolicy) = *(*v1.MutatingAdmissionPolicy)(unsafe.Pointer(a.(*v1beta1.MutatingAdmissionPolicy)))
		return nil
	}))
	must(tb, scheme.AddConversionFunc((*v1.MutatingAdmissionPolicy)(nil), (*v1beta1.MutatingAdmissionPolicy)(nil), func(a, b any, _ conversion.Scope) error {
		*b.(*v1beta1.MutatingAdmissionPolicy) = *(*v1beta1.MutatingAdmissionPolicy)(unsafe.Pointer(a.(*v1.MutatingAdmissionPolicy)))
		return nil
	}))
	codecs := serializer.NewCodecFactory(scheme)
	encoder := format(scheme)
	return typed{
		old: codecs.CodecForVersions(encoder, codecs.UniversalDeserializer(), v1beta1.SchemeGroupVersion, internal),
		new: codecs.CodecForVersions(encoder, codecs.UniversalDeserializer(), v1.SchemeGroupVersion, internal),
	}
}

// value encodes the n-th object, of about 1 KiB, with one of the codecs.
func (typed) value(tb testing.TB, codec machinery.Codec, n int) []byte {
	tb.Helper()
	policy := &v1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{
		Name:        fmt.Sprintf("object-%06d", n),
		UID:         "2f3b4f0e-8a32-4f9b-9d0c-1f7a3f1b2c3d",
		Generation:  1,
		Annotations: map[string]string{"note": strings.Repeat("n", 700)},
	}, Spec: v1.MutatingAdmissionPolicySpec{
		Mutations: []v1.Mutation{{PatchType: v1.PatchTypeJSONPatch, JSONPatch: &v1.JSONPatch{
			Expression: fmt.Sprintf(`[JSONPatch{op: "add", path: "/metadata/labels/n", value: "%d"}]`, n),
		}}},
	}}
	out, err := machinery.Encode(codec, policy)
	must(tb, err)
	return out
}

// content returns a hash of an object that does not depend on its encoding.
func (t typed) content(tb testing.TB, value []byte) string {
	tb.Helper()
	obj, _, err := t.new.Decode(value, nil, nil)
	must(tb, err)
	out, err := machinery.Encode(t.new, obj)
	must(tb, err)
	return fmt.Sprintf("%x", sha256.Sum256(out))
}

// widgets returns a codec like those of custom resources: unstructured, in JSON.
func widgets(version string) machinery.Codec {
	gv := schema.GroupVersion{Group: "example.com", Version: version}
	return versioning.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme,
		renaming{}, nil, widgetTyper{}, nil, gv, gv, "widgets")
}

// renaming converts between versions by changing apiVersion.
type renaming struct{}

func (renaming) Convert(in, out, _ any) error {
	from, to := in.(*unstructured.Unstructured), out.(*unstructured.Unstructured)
	gvk := to.GroupVersionKind()
	from.DeepCopyInto(to)
	to.SetGroupVersionKind(gvk)
	return nil
}

func (renaming) ConvertToVersion(in machinery.Object, target machinery.GroupVersioner) (machinery.Object, error) {
	gvk, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{in.GetObjectKind().GroupVersionKind()})
	if !ok {
		return nil, fmt.Errorf("%v is not in the group", in.GetObjectKind().GroupVersionKind())
	}
	in.GetObjectKind().SetGroupVersionKind(gvk)
	return in, nil
}

func (renaming) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type widgetTyper struct{}

func (widgetTyper) ObjectKinds(obj machinery.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{obj.GetObjectKind().GroupVersionKind()}, false, nil
}

func (widgetTyper) Recognizes(gvk schema.GroupVersionKind) bool { return gvk.Group == "example.com" }

func newPolicy() machinery.Object { return &v1.MutatingAdmissionPolicy{} }

// newWidget returns an object with the version to decode to, as the storage of custom resources does.
func newWidget() machinery.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Widget"})
	return u
}

func widget(tb testing.TB, version string, n int) []byte {
	tb.Helper()
	out, err := json.Marshal(map[string]any{
		"apiVersion": "example.com/" + version,
		"kind":       "Widget",
		"metadata":   map[string]any{"name": fmt.Sprintf("object-%06d", n), "namespace": "default"},
		"spec":       map[string]any{"n": n, "note": strings.Repeat("n", 850)},
	})
	must(tb, err)
	return append(out, '\n')
}

// TestYAML: values of a server with --storage-media-type=application/yaml are rewritten, too.
func TestYAML(t *testing.T) {
	c := startEtcd(t)
	codecs := typedIn(t, func(scheme *machinery.Scheme) machinery.Encoder {
		return jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{Yaml: true})
	})
	contents := map[string]string{}
	key := numbered(policyPrefix)
	load(t, c, 3, key, func(i int) []byte {
		value := codecs.value(t, codecs.old, i)
		contents[key(i)] = newTyped(t).content(t, value)
		return value
	})
	target := policyTarget(t, c)
	target.Codec = codecs.new
	result := rewritten(t, NewEtcd(c), target, Options{}, nil)
	if result.Rewritten != 3 {
		t.Fatalf("got %+v", result)
	}
	requireNew(t, c, contents)
	for key, e := range stored(t, c, policyPrefix) {
		if !bytes.HasPrefix(e.Value, []byte("apiVersion: ")) {
			t.Errorf("%s is stored as %q", key, e.Value)
		}
	}
}
