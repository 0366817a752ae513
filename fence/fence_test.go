package fence

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

const (
	self  agree.ServerID = "apiserver-self"
	other agree.ServerID = "apiserver-other"

	patience = 2 * time.Minute
)

var (
	configMaps = schema.GroupResource{Resource: "configmaps"}
	leases     = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

	// testEtcd is shared by all tests; every world has its own prefix in it.
	testEtcd *clientv3.Client
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	cacheWait = patience
	dir, err := os.MkdirTemp("", "fence")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	etcd, err := etcdtest.Start(etcdtest.Config(dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer etcd.Close()
	testEtcd, err = Dial(context.Background(), storagebackend.TransportConfig{ServerList: []string{etcdtest.Endpoint(etcd)}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = testEtcd.Close() }()
	return m.Run()
}

// permits implements Permits for one server. It goes by the grants of the test and by the reports that
// transactions find.
type permits struct {
	mu    sync.Mutex
	open  map[schema.GroupResource]permit
	moved int
}

type permit struct {
	enc agree.Encoding
	rev int64
}

func (p *permits) Revision(_ context.Context, gr schema.GroupResource, enc agree.Encoding) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open, ok := p.open[gr]
	switch {
	case !ok:
		return 0, storageversion.Unavailable(gr, "closed")
	case open.enc != enc:
		return 0, fmt.Errorf("%s is reported in %s: %w", gr, open.enc, agree.ErrSuperseded)
	}
	return open.rev, nil
}

func (p *permits) Moved(_ context.Context, gr schema.GroupResource, enc agree.Encoding, _, mod int64, reports []agree.Report) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved++
	if mod > 0 && mod < p.open[gr].rev {
		return nil // the transaction found an older StorageVersion
	}
	switch agree.Judge(reports, self, enc) {
	case agree.Proceed:
		if p.open[gr].rev < mod {
			p.open[gr] = permit{enc, mod}
		}
		return nil
	case agree.Superseded:
		return fmt.Errorf("%s in %s: %w", gr, enc, agree.ErrSuperseded)
	default:
		delete(p.open, gr)
		return storageversion.Unavailable(gr, "report lost")
	}
}

func (p *permits) grant(gr schema.GroupResource, enc agree.Encoding, rev int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[gr] = permit{enc, rev}
}

func (p *permits) mismatches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// world is the fence of one server, with its own prefix in etcd.
type world struct {
	testing.TB
	fence    *Fence
	permits  *permits
	clock    *clocktesting.FakeClock
	prefix   string
	versions storage.Interface
}

func newWorld(t testing.TB) *world { return newWorldWith(t, testEtcd, nil) }

func newWorldWith(t testing.TB, client *clientv3.Client, transformer value.Transformer) *world {
	t.Helper()
	w := &world{
		TB:      t,
		permits: &permits{open: map[schema.GroupResource]permit{}},
		clock:   clocktesting.NewFakeClock(time.Now()),
		prefix:  "/" + strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
	}
	f, err := New(Config{Client: client, Permits: w.permits, Clock: w.clock})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(f.Close)
	w.fence = f
	config := w.config(storageversion.Resource, builtinCodec(v1alpha1.SchemeGroupVersion))
	config.Transformer = transformer
	w.versions = w.build(config, "/storageversions", false, func() runtime.Object { return &v1alpha1.StorageVersion{} }, func() runtime.Object { return &v1alpha1.StorageVersionList{} })
	return w
}

func (w *world) config(gr schema.GroupResource, codec runtime.Codec) *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig(w.prefix, codec)
	return config.ForResource(gr)
}

// build makes a store through the decorator, as a registry does; it is destroyed at the end of the test.
func (w *world) build(config *storagebackend.ConfigForResource, resourcePrefix string, cached bool, newFunc, newListFunc func() runtime.Object) storage.Interface {
	w.Helper()
	s, destroy, err := w.decorate(config, resourcePrefix, cached, newFunc, newListFunc)
	if err != nil {
		w.Fatalf("decorator: %v", err)
	}
	w.Cleanup(destroy)
	return s
}

func (w *world) decorate(config *storagebackend.ConfigForResource, resourcePrefix string, cached bool, newFunc, newListFunc func() runtime.Object) (storage.Interface, func(), error) {
	keyOf := func(obj runtime.Object) (string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		return resourcePrefix + "/" + m.GetName(), nil
	}
	return w.fence.Decorator(cached)(config, resourcePrefix, keyOf, newFunc, newListFunc, storage.DefaultClusterScopedAttr, nil, nil)
}

func (w *world) configMaps(cached bool) storage.Interface {
	w.Helper()
	return w.build(w.config(configMaps, builtinCodec(corev1.SchemeGroupVersion)), "/configmaps", cached,
		func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} })
}

func (w *world) leases() storage.Interface {
	w.Helper()
	return w.build(w.config(leases, builtinCodec(coordinationv1.SchemeGroupVersion)), "/leases", false,
		func() runtime.Object { return &coordinationv1.Lease{} }, func() runtime.Object { return &coordinationv1.LeaseList{} })
}

// report writes the resource's StorageVersion and returns its revision in etcd.
func (w *world) report(gr schema.GroupResource, reports ...agree.Report) int64 {
	w.Helper()
	name := storageversion.Name(gr)
	out := &v1alpha1.StorageVersion{}
	err := w.versions.GuaranteedUpdate(w.Context(), "/storageversions/"+name, out, true, nil,
		storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			sv := in.(*v1alpha1.StorageVersion)
			sv.Name = name
			sv.Annotations = map[string]string{"write": strconv.FormatInt(time.Now().UnixNano(), 10)}
			storageversion.SetReports(sv, reports, metav1.Now())
			return sv, nil
		}), nil)
	if err != nil {
		w.Fatalf("writing StorageVersion %s: %v", name, err)
	}
	rev, err := strconv.ParseInt(out.ResourceVersion, 10, 64)
	must(w, err)
	return rev
}

// permit reports the encoding for this server, and grants writes of the resource at that revision.
func (w *world) permit(gr schema.GroupResource, enc agree.Encoding) {
	w.Helper()
	w.permits.grant(gr, enc, w.report(gr, by(self, enc)))
}

func by(server agree.ServerID, enc agree.Encoding) agree.Report {
	return agree.Report{Server: server, Encoding: enc, Decodable: []string{string(enc)}, Served: []string{string(enc)}}
}

// stored returns everything under a resource's prefix as "key@revision=value".
func (w *world) stored(resourcePrefix string) string {
	w.Helper()
	resp, err := w.fence.client.Get(w.Context(), w.prefix+resourcePrefix+"/", clientv3.WithPrefix())
	must(w, err)
	var all strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&all, "%s@%d=%q\n", kv.Key, kv.ModRevision, kv.Value)
	}
	return all.String()
}

func configMap(name, data string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"data": data}}
}

// setData returns a tryUpdate that may be called several times.
func setData(data string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		cm := in.(*corev1.ConfigMap)
		cm.Data = map[string]string{"data": data}
		return cm, nil
	})
}

// wantUnavailable asserts that err is a 503 with Retry-After, which clients repeat by themselves.
func wantUnavailable(t testing.TB, err error) {
	t.Helper()
	if !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("got %v, want a 503", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds <= 0 {
		t.Fatalf("%v does not tell when to retry", err)
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 2*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		t.Fatalf("waited %s for %s", patience, what)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
