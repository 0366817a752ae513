package fence

import (
	"context"
	"crypto/aes"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestEncryptedStorageVersions: the fence reads reports under the StorageVersions' own prefix, and
// decrypts them.
func TestEncryptedStorageVersions(t *testing.T) {
	block, err := aes.NewCipher([]byte("0123456789abcdef"))
	must(t, err)
	transformer, err := aestransformer.NewGCMTransformer(block)
	must(t, err)
	w := newWorldWith(t, testEtcd, transformer)
	s := w.configMaps(false)
	w.permit(configMaps, "v1")
	w.report(configMaps, by(other, "v1"), by(self, "v1"))
	if raw := w.stored("/storageversions"); strings.Contains(raw, string(self)) {
		t.Fatalf("the StorageVersion is not encrypted: %s", raw)
	}
	if err := s.Create(t.Context(), "/configmaps/a", configMap("a", "x"), nil, 0); err != nil {
		t.Errorf("create after the StorageVersion moved: %v", err)
	}
	w.report(configMaps, by(other, "v1"))
	wantUnavailable(t, s.Create(t.Context(), "/configmaps/b", configMap("b", "x"), nil, 0))
}

func TestUncached(t *testing.T) {
	w := newWorld(t)
	w.fence.uncached = sets.New(configMaps)
	if s := w.configMaps(true).(*forwarder); s.Interface != s.self.raw {
		t.Errorf("%s is to have no cache and has %T", configMaps, s.Interface)
	}
}

func TestConfigValidate(t *testing.T) {
	p := &permits{}
	for name, config := range map[string]Config{
		"Client":             {Permits: p},
		"Permits":            {Client: testEtcd},
		"CompactionInterval": {Client: testEtcd, Permits: p, CompactionInterval: -1},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "Config."+name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestCompactorEnds(t *testing.T) {
	f, err := New(Config{Client: testEtcd, Permits: &permits{}, CompactionInterval: patience})
	must(t, err)
	f.Close()
	f.Close()
}

// watchStreams counts the gRPC watch streams of a client.
type watchStreams struct{ open atomic.Int32 }

func (c *watchStreams) intercept(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, opts...)
	if err == nil && strings.HasSuffix(method, "Watch/Watch") {
		c.open.Add(1)
		context.AfterFunc(stream.Context(), func() { c.open.Add(-1) })
	}
	return stream, err
}

// TestDamagedValueIsNamed: a value that does not decode keeps the watch cache from being filled.
// Lists and watches are then answered with an error that names the value, instead of "too many
// requests" for ever.
func TestDamagedValueIsNamed(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	w := newWorld(t)
	w.permit(configMaps, "v1")
	if _, err := testEtcd.Put(t.Context(), w.prefix+"/configmaps/damaged", "garbage"); err != nil {
		t.Fatal(err)
	}
	s := w.configMaps(true)
	everything := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	list := func() error { return s.GetList(t.Context(), "/configmaps/", everything, &corev1.ConfigMapList{}) }
	named := func(err error) bool {
		return apierrors.IsStoreReadError(err) && strings.Contains(err.Error(), "/configmaps/damaged")
	}
	eventually(t, "a list to name the damaged value", func() bool { return named(list()) })
	if _, err := s.Watch(t.Context(), "/configmaps/", everything); !named(err) {
		t.Errorf("a watch is answered with %v", err)
	}
	err := s.Delete(t.Context(), "/configmaps/damaged", &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{ExpectTransformOrDecodeError: true})
	must(t, err)
	eventually(t, "lists to be answered", func() bool { return list() == nil })
	// After the value was deleted, it is not given as the reason of later errors.
	if err := s.(*forwarder).Interface.(*explained).explain(apierrors.NewTooManyRequests("later", 1)); !apierrors.IsTooManyRequests(err) {
		t.Errorf("after the value was deleted: %v", err)
	}
}
