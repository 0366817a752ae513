package fence

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
)

// rotating is a transformer that tells the key (Seal) it encrypts with. A test can change the key
// between calls.
type rotating struct {
	key    atomic.Pointer[string]
	sealed func(key string) // called after a value was sealed
}

func (r *rotating) rotate(key string) { r.key.Store(&key) }

func (r *rotating) Current() agree.Seal { return agree.Seal("t:v1:" + *r.key.Load() + ":0") }

func (r *rotating) Seal(_ context.Context, data []byte, _ value.Context) ([]byte, agree.Seal, error) {
	key := *r.key.Load()
	if r.sealed != nil {
		r.sealed(key)
	}
	return append([]byte("enc:"+key+":"), data...), agree.Seal("t:v1:" + key + ":0"), nil
}

func (r *rotating) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	out, _, err := r.Seal(ctx, data, dataCtx)
	return out, err
}

func (r *rotating) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	parts := strings.SplitN(string(data), ":", 3)
	return []byte(parts[2]), parts[1] != *r.key.Load(), nil
}

// TestSealedWithTheKeyReported: a value that was encrypted before its server reports another key is
// not written. The call runs again, and the value that is written has the new key.
func TestSealedWithTheKeyReported(t *testing.T) {
	w := newWorld(t)
	w.fence.clock, w.fence.forwardTimeout = clock.RealClock{}, patience
	sealer := &rotating{}
	sealer.rotate("a")
	config := w.config(configMaps, builtinCodec(corev1.SchemeGroupVersion))
	config.Transformer = sealer
	s := w.build(config, "/configmaps", false, func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} })
	inA, inB := agree.Encoding("v1+t:v1:a:0"), agree.Encoding("v1+t:v1:b:0")
	keyOf := func(name string) string {
		t.Helper()
		resp, err := testEtcd.Get(t.Context(), w.prefix+"/configmaps/"+name)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", name, resp, err)
		}
		return strings.SplitN(string(resp.Kvs[0].Value), ":", 3)[1]
	}
	create := func(name string) error {
		return s.Create(t.Context(), "/configmaps/"+name, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil, 0)
	}
	if err := create("early"); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("without a permission: %v", err)
	}
	w.permit(configMaps, inA)
	if err := create("one"); err != nil || keyOf("one") != "a" {
		t.Fatalf("got %v", err)
	}
	// The report changes after the value was encrypted and before the put, twice.
	turn := func(to string, enc agree.Encoding) func(string) {
		return func(key string) {
			if key != to {
				sealer.rotate(to)
				w.permit(configMaps, enc)
			}
		}
	}
	sealer.sealed = turn("b", inB)
	if err := create("two"); err != nil || keyOf("two") != "b" {
		t.Fatalf("got %v", err)
	}
	sealer.sealed = turn("a", inA)
	err := s.GuaranteedUpdate(t.Context(), "/configmaps/two", &corev1.ConfigMap{}, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		in.(*corev1.ConfigMap).Data = map[string]string{"k": "v"}
		return in, nil
	}), nil)
	if err != nil || keyOf("two") != "a" {
		t.Fatalf("got %v", err)
	}
}

func TestStamp(t *testing.T) {
	for _, seal := range []string{"", "a", strings.Repeat("x", 300)} {
		sealer := &rotating{}
		sealer.rotate(seal)
		stamped, err := stamping{sealer}.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k"))
		must(t, err)
		got, with, err := unstamp(stamped)
		if err != nil || string(got) != "enc:"+seal+":text" || with != sealer.Current() {
			t.Errorf("got %q sealed with %q, %v", got, with, err)
		}
	}
	for _, bad := range []string{"", "x", "text\xff\xff"} {
		if _, _, err := unstamp([]byte(bad)); err == nil {
			t.Errorf("%q passes for a stamped value", bad)
		}
	}
}

var (
	builtinScheme = newBuiltinScheme()
	builtinCodecs = serializer.NewCodecFactory(builtinScheme)
)

// newBuiltinScheme returns a scheme in which the versioned types are also the internal types.
func newBuiltinScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	for kind, obj := range map[schema.GroupKind]runtime.Object{
		{Kind: "ConfigMap"}: &corev1.ConfigMap{},
		{Group: coordinationv1.GroupName, Kind: "Lease"}:    &coordinationv1.Lease{},
		{Group: v1alpha1.GroupName, Kind: "StorageVersion"}: &v1alpha1.StorageVersion{},
	} {
		scheme.AddKnownTypeWithName(kind.WithVersion(runtime.APIVersionInternal), obj)
	}
	return scheme
}

// builtinCodec returns a codec that stores protobuf, with versioners like those of a storage
// factory.
func builtinCodec(gv schema.GroupVersion) runtime.Codec {
	info, ok := runtime.SerializerInfoForMediaType(builtinCodecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("no protobuf serializer")
	}
	group := schema.GroupKind{Group: gv.Group}
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	return runtime.NewCodec(
		builtinCodecs.EncoderForVersion(info.Serializer, runtime.NewMultiGroupVersioner(gv, group, group)),
		builtinCodecs.DecoderToVersion(builtinCodecs.UniversalDeserializer(), runtime.NewCoercingMultiGroupVersioner(internal, group, group)),
	)
}

func TestMetrics(t *testing.T) {
	read := func() [3]float64 {
		t.Helper()
		var values [3]float64
		for i, counter := range []func() (float64, error){
			func() (float64, error) {
				return testutil.GetCounterMetricValue(mismatches.WithLabelValues("", "configmaps"))
			},
			func() (float64, error) {
				return testutil.GetCounterMetricValue(retries.WithLabelValues("", "configmaps"))
			},
			func() (float64, error) {
				return testutil.GetCounterMetricValue(forwards.WithLabelValues(widgets.Group, widgets.Resource, "success"))
			},
		} {
			value, err := counter()
			must(t, err)
			values[i] = value
		}
		return values
	}
	before := read()
	w, s := newConfigMaps(t)
	w.report(configMaps, by(self, "v1"), by(other, "v1")) // the put finds another revision, and is tried again
	must(t, s.GuaranteedUpdate(t.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil, setData("a"), nil))
	w.report(configMaps, by(other, "v1")) // the put finds no own report, and is refused
	wantUnavailable(t, writes["create"](w, s))
	f := newFlip(t, false)
	f.buildNew()
	f.permit(widgets, encV2)
	f.wantForwarded() // does a create and an update
	after := read()
	for i, want := range []float64{2, 1, 2} {
		if got := after[i] - before[i]; got != want {
			t.Errorf("counter %d rose by %v, want %v", i, got, want)
		}
	}
}
