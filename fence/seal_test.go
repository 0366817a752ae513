package fence

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
)

// rotating is a Sealer whose key is told; between calls it may change.
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

// A value that was sealed before its server turned to another key is not written: the call
// is made again, and the value written has the new key.
func TestSealedWithTheKeyReported(t *testing.T) {
	w := newWorld(t)
	w.fence.clock, w.fence.forwardTimeout = clock.RealClock{}, patience
	sealer := &rotating{}
	sealer.rotate("a")
	config := w.config(configMaps, builtinCodec(corev1.SchemeGroupVersion))
	config.Transformer = sealer
	s := w.build(config, "/configmaps", false, func() machinery.Object { return &corev1.ConfigMap{} }, func() machinery.Object { return &corev1.ConfigMapList{} })
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
	// The report moves between the sealing and the put, and again.
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
	err := s.GuaranteedUpdate(t.Context(), "/configmaps/two", &corev1.ConfigMap{}, false, nil, storage.SimpleUpdate(func(in machinery.Object) (machinery.Object, error) {
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
