package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/version"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/internal/local"
	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// things is the resource that the tests' aggregated server stores. Its objects are Leases.
var things = schema.GroupResource{Group: "example.com", Resource: "things"}

// hosted is an aggregated API server and its host cluster; both use one etcd, with different prefixes.
type hosted struct {
	t     *testing.T
	j     *Join
	store storage.Interface
	// local and host are clients of the Leases and StorageVersions in the server's own etcd and in the host; answer
	// and refuse do not affect host.
	local, host client.Client
	// answer is the HTTP status of all the host's answers, or 0 for its real answers. With refuse, the host refuses
	// writes only.
	answer atomic.Int32
	refuse atomic.Bool
	// only restricts answer to requests for StorageVersions.
	only atomic.Bool
	// mute makes the host refuse updates of Leases; they can be created.
	mute atomic.Bool
	// silent makes the host forbid the dry run by which the server asks whether the StorageVersions are Concord's.
	silent atomic.Bool
	// upstreams gives the host kube-apiserver's own StorageVersions.
	upstreams atomic.Bool
	// disconnect closes the server's connections to the host, with their watches.
	disconnect func()
	// early are the Leases in the host that were deleted while their servers could still write.
	mu    sync.Mutex
	early []string
}

func startTestEtcd(t *testing.T) string {
	t.Helper()
	etcd, err := etcdtest.Start(etcdtest.Config(t.TempDir()))
	must(t, err)
	t.Cleanup(etcd.Close)
	return etcdtest.Endpoint(etcd)
}

func newHosted(t *testing.T) *hosted {
	t.Helper()
	h := &hosted{t: t}
	etcd := startTestEtcd(t)
	backend := func(prefix string) storagebackend.Config {
		c := storagebackend.NewDefaultConfig(prefix, nil)
		c.Transport.ServerList = []string{etcd}
		c.ReadycheckTimeout = time.Minute // a slow answer of a busy machine is no outage
		return *c
	}
	hostEtcd, err := Dial(t.Context(), backend("/host"))
	must(t, err)
	t.Cleanup(func() { _ = hostEtcd.Close() }) // the test is over
	groups, err := (&storing{config: Config{Etcd: backend("/host")}, etcd: hostEtcd.Client()}).localGroups()
	must(t, err)
	handler, err := local.Handler(groups...)
	must(t, err)
	server, direct := httptest.NewServer(h.hostHandler(handler)), httptest.NewServer(handler)
	h.disconnect = server.CloseClientConnections
	t.Cleanup(server.Close)
	t.Cleanup(direct.Close)
	v := version.MustParse("1.2")
	h.j, err = New(t.Context(), Config{
		Host: &rest.Config{Host: server.URL}, Address: "127.0.0.1:1", Etcd: backend("/own"), Schemes: []*runtime.Scheme{registry.LeaseScheme},
		Binary: v, Emulation: v, MinCompatibility: v,
		IdentityLeaseDuration: time.Minute, IdentityLeaseRenewInterval: 500 * time.Millisecond, ControllerLeaseDuration: time.Second,
	})
	must(t, err)
	h.j.hosting.Look = 100 * time.Millisecond
	h.start(direct.URL)
	return h
}

// start does what Join.Start does for a generic server.
func (h *hosted) start(url string) {
	h.t.Helper()
	codec, err := jsonCodec(serializer.NewCodecFactory(registry.LeaseScheme), coordinationv1.SchemeGroupVersion)
	must(h.t, err)
	options, err := h.j.storing.storageOf(things, codec)
	must(h.t, err)
	var destroy func()
	h.store, destroy, err = options.Decorator(options.StorageConfig, "/things", thingKey, func() runtime.Object { return &coordinationv1.Lease{} },
		func() runtime.Object { return &coordinationv1.LeaseList{} }, storage.DefaultClusterScopedAttr, nil, nil)
	must(h.t, err)
	must(h.t, h.j.storing.serveStorageVersions(nil, h.j.local))
	h.j.hosting.Reports, err = h.j.reporting.reportsOf(h.j.storing, func(schema.GroupVersionResource) bool { return true })
	must(h.t, err)
	must(h.t, h.j.reporting.member.SetBuiltins(h.j.hosting.Reports))
	h.local = h.j.clients.objects
	if h.host, err = NewClient(&rest.Config{Host: url}); err != nil {
		h.t.Fatal(err)
	}
	h.j.running.begin()
	h.t.Cleanup(func() {
		if err := h.j.running.depart(); err != nil {
			h.t.Error(err)
		}
		destroy()
		if err := errors.Join(h.j.Close(), h.j.Close()); err != nil {
			h.t.Error(err)
		}
	})
}

func thingKey(obj runtime.Object) (string, error) {
	name, err := cache.ObjectToName(obj)
	return "/things/" + name.Name, err
}

// hostHandler answers as the test wants it, and records Leases that are deleted while their server can still write.
func (h *hosted) hostHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch status := int(h.answer.Load()); {
		case status != 0 && (!h.only.Load() || strings.Contains(r.URL.Path, v1alpha1.GroupName)):
			w.WriteHeader(status)
			return
		case h.silent.Load() && r.URL.Query().Get("dryRun") != "":
			w.WriteHeader(http.StatusForbidden)
			return
		case h.mute.Load() && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/leases/"),
			h.refuse.Load() && r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "":
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/leases/"):
			h.buried(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		}
		if h.upstreams.Load() && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/storageversions") {
			if r.URL.Query().Get("dryRun") == "" {
				h.t.Error("a StorageVersion is made in a host whose StorageVersions are not ours")
			}
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
			w.WriteHeader(answer.Code)
			_, _ = w.Write(bytes.ReplaceAll(answer.Body.Bytes(), []byte(storageversion.EpochAnnotation), []byte("example.com/xxxxx"))) // of the same length
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (h *hosted) buried(name string) {
	lease := &coordinationv1.Lease{}
	if err := h.host.Get(context.Background(), client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: name}, lease); err != nil {
		return
	}
	local := lease.Annotations[storageversion.LocalIdentityAnnotation]
	all := &coordinationv1.LeaseList{}
	if err := h.host.List(context.Background(), all, client.HasLabels{storageversion.AggregatedLabel}); err != nil {
		return
	}
	for i := range all.Items { // another Lease of the same server may have taken its place
		other := &all.Items[i]
		if other.Name != name && other.Annotations[storageversion.LocalIdentityAnnotation] == local && storageversion.Holds(other) {
			return
		}
	}
	if _, reports := agree.Of(h.reports(h.local), agree.ServerID(local)); reports {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.early = append(h.early, name)
	}
}

// TestNotStarted: a server whose program does not call Start is not ready, and its check says why.
func TestNotStarted(t *testing.T) {
	j := &Join{}
	config := genericapiserver.NewConfig(serializer.NewCodecFactory(registry.LeaseScheme))
	j.Handlers(config)
	for _, check := range config.ReadyzChecks {
		if check.Name() != startedCheck {
			continue
		}
		if err := check.Check(nil); err == nil || !strings.Contains(err.Error(), "Start") {
			t.Errorf("before Start: %v", err)
		}
		if j.started.Store(true); check.Check(nil) != nil {
			t.Errorf("after Start: %v", check.Check(nil))
		}
		return
	}
	t.Errorf("there is no check %s", startedCheck)
}

// TestHostingCutOff: a replica without a connection to the host goes on writing the encoding that it has reported. In
// the host its report is lost, and another replica makes a new StorageVersion. There is no agreement until the first
// replica is back.
func TestHostingCutOff(t *testing.T) {
	h := newHosted(t)
	h.wantWritable()
	before := h.reports(h.host)
	h.answer.Store(http.StatusInternalServerError)
	h.disconnect()
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(things)}}
	must(t, h.host.Delete(t.Context(), sv))
	other, err := member.New(member.Config{
		Client: h.host.(client.WithWatch), Bury: func(context.Context, agree.ServerID) error { return nil },
		Versions: h.j.config.versions(), Labels: map[string]string{storageversion.AggregatedLabel: "other"},
	})
	must(t, err)
	must(t, errors.Join(other.SetBuiltins(h.j.hosting.Reports), other.Register(t.Context())))
	if _, err := other.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := h.reports(h.host); len(now) != 2 || now[1].Server != before[0].Server || now[1].Encoding != agree.Unknown {
		t.Errorf("the host has the reports %v after %v", now, before)
	}
	if err := h.write(); err != nil {
		t.Errorf("while the host is away: %v", err)
	}
	h.answer.Store(0)
	h.eventually("all agree again", func() error {
		if _, agreed := agree.Common(h.reports(h.host)); !agreed {
			return fmt.Errorf("the host has the reports %v", h.reports(h.host))
		}
		return nil
	})
}

// TestHostingFlaps: twice, the host loses the report and serves no StorageVersions for a while, as while a host's
// server with the gate off is rolled. The Leases that the server had in the host before do not keep the host from
// agreeing, and none is left when the server stops.
func TestHostingFlaps(t *testing.T) {
	h := newHosted(t)
	h.wantWritable()
	for range 2 {
		h.loseAndServeNone()
		h.answer.Store(0)
		h.eventually("the host agrees, and has one Lease", func() error {
			leases, reports := h.hostLeases(), h.reports(h.host)
			if _, agreed := agree.Common(reports); !agreed || len(leases) != 1 {
				return fmt.Errorf("the host has the reports %v and the Leases %v", reports, leases)
			}
			return nil
		})
		h.wantWritable()
	}
	h.loseAndServeNone()
	h.only.Store(true) // only for StorageVersions; requests for Leases are answered
	h.answer.Store(http.StatusNotFound)
	must(t, h.j.running.depart())
	if left := h.hostLeases(); len(left) != 0 {
		t.Errorf("it has left the Leases %v in the host", left)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.early) > 0 {
		t.Errorf("buried in the host, with the permission to write: %v", h.early)
	}
}

// TestHostingForbids: a host that begins to serve StorageVersions, but forbids to ask whether they are Concord's, may
// be one to report to, so writes are refused. A host whose StorageVersions were known not to be Concord's is still
// taken for such a host.
func TestHostingForbids(t *testing.T) {
	h := newHosted(t)
	h.answer.Store(http.StatusNotFound)
	h.wantWritable()
	h.silent.Store(true)
	h.answer.Store(0)
	h.wantRefused("whether its StorageVersions are Concord's")
	h.upstreams.Store(true)
	h.silent.Store(false)
	h.wantWritable()
	h.silent.Store(true)
	for range 3 {
		time.Sleep(time.Second) // the server asks the host every second
		h.wantWritable()
	}
	h.silent.Store(false)
	h.upstreams.Store(false)
	h.eventually("the host has the report", func() error {
		if len(h.reports(h.host)) != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	h.wantWritable()

	// The Lease of a registration that has ended is deleted without waiting for that answer.
	h.silent.Store(true)
	id := h.j.reporting.member.ID()
	must(t, h.local.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: string(id)}}))
	h.eventually("the Lease of the registration that is gone is taken back", func() error {
		if left := h.hostLeases(); len(left) != 0 {
			return fmt.Errorf("the host has the Leases %v", left)
		}
		return nil
	})
	h.wantRefused("whether its StorageVersions are Concord's")
	h.silent.Store(false)
	h.wantWritable()
}

// loseAndServeNone deletes the StorageVersion in the host. Before the server can report again, the host stops serving
// StorageVersions.
func (h *hosted) loseAndServeNone() {
	h.t.Helper()
	h.refuse.Store(true)
	must(h.t, h.host.Delete(h.t.Context(), &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(things)}}))
	h.wantRefused("not reported to the host cluster")
	h.answer.Store(http.StatusNotFound)
	h.wantWritable()
	h.refuse.Store(false)
}

// hostLeases returns the names of the aggregated servers' Leases in the host.
func (h *hosted) hostLeases() []string {
	h.t.Helper()
	leases := &coordinationv1.LeaseList{}
	must(h.t, h.host.List(context.Background(), leases, client.HasLabels{storageversion.AggregatedLabel}))
	var names []string
	for i := range leases.Items {
		names = append(names, leases.Items[i].Name)
	}
	return names
}

// reports returns the reports of things.
func (h *hosted) reports(c client.Client) []agree.Report {
	sv := &v1alpha1.StorageVersion{}
	if err := c.Get(context.Background(), client.ObjectKey{Name: storageversion.Name(things)}, sv); err != nil {
		return nil
	}
	return storageversion.Reports(sv)
}

// write creates a thing.
func (h *hosted) write() error {
	thing := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t-%d", time.Now().UnixNano())}}
	return h.store.Create(h.t.Context(), "/things/"+thing.Name, thing, nil, 0)
}

func (h *hosted) eventually(what string, is func() error) {
	h.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for err := is(); err != nil; err = is() {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// wantRefused expects writes to be refused with a 503 that has this reason, and the server not to be ready.
func (h *hosted) wantRefused(because string) {
	h.t.Helper()
	h.eventually("writes are refused for the host's sake", func() error {
		if err := h.write(); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), because) {
			return fmt.Errorf("the write ended with: %w", err)
		}
		return nil
	})
	for range 20 {
		if err := h.write(); !apierrors.IsServiceUnavailable(err) {
			h.t.Fatalf("a write that the host knows nothing of ended with %v", err)
		}
	}
	if h.j.Ready() == nil {
		h.t.Error("the server calls itself ready")
	}
	if status, retry := h.request(http.MethodPost, things.Resource); status != http.StatusServiceUnavailable || retry == "" {
		h.t.Errorf("the gate answers %d, Retry-After %q", status, retry)
	}
	for method, resource := range map[string]string{http.MethodGet: things.Resource, http.MethodPost: "reviews"} {
		if status, _ := h.request(method, resource); status != http.StatusTeapot {
			h.t.Errorf("%s of %s: the gate answers %d", method, resource, status)
		}
	}
}

// request sends a request through the gate, and returns the gate's answer; 418 means that the gate let it pass.
func (h *hosted) request(method, resource string) (status int, retryAfter string) {
	h.t.Helper()
	gate := h.j.reporting.gate(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), serializer.NewCodecFactory(registry.LeaseScheme))
	r := httptest.NewRequestWithContext(h.t.Context(), method, "/apis/example.com/v1/"+resource, http.NoBody)
	info := &apirequest.RequestInfo{IsResourceRequest: true, APIGroup: things.Group, APIVersion: "v1", Resource: resource, Verb: map[string]string{http.MethodGet: "list", http.MethodPost: "create"}[method]}
	w := httptest.NewRecorder()
	gate.ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
	return w.Code, w.Header().Get("Retry-After")
}

func (h *hosted) wantWritable() {
	h.t.Helper()
	h.eventually("writes are let pass", h.write)
	h.eventually("it is ready", h.j.Ready)
	h.eventually("the gate lets writes pass", func() error {
		if status, _ := h.request(http.MethodPost, things.Resource); status != http.StatusTeapot {
			return fmt.Errorf("the gate answers %d", status)
		}
		return nil
	})
}

// TestHosting: the host knows the encodings that an aggregated server may write, from its first write to its last,
// whatever happens to the server's registration. If the host does not serve Concord's StorageVersions, the server
// writes without it.
func TestHosting(t *testing.T) {
	h := newHosted(t)
	h.answer.Store(http.StatusInternalServerError)
	h.wantRefused("StorageVersions")
	h.answer.Store(http.StatusNotFound)
	h.wantWritable()
	if n := len(h.reports(h.local)); n != 1 {
		t.Errorf("%d reports in the own etcd", n)
	}

	// The host is a kube-apiserver with StorageVersions of its own: nothing is reported there.
	h.upstreams.Store(true)
	h.answer.Store(0)
	for range 3 {
		time.Sleep(h.j.hosting.Look)
		h.wantWritable()
	}
	left := &coordinationv1.LeaseList{}
	if err := h.host.List(t.Context(), left, client.HasLabels{storageversion.AggregatedLabel}); err != nil || len(left.Items)+len(h.reports(h.host)) != 0 {
		t.Errorf("it has left %v and %v there, %v", left.Items, h.reports(h.host), err)
	}

	h.refuse.Store(true)
	h.mute.Store(true)
	h.upstreams.Store(false)
	h.wantRefused("not reported to the host cluster")
	h.refuse.Store(false)
	h.wantRefused("does not say yet that all is reported: renew identity Lease")
	if err := h.j.Ready(); err == nil || !strings.Contains(err.Error(), "renew identity Lease") {
		t.Errorf("it is not ready because of: %v", err)
	}
	h.mute.Store(false)
	h.wantWritable()
	first := h.reports(h.host)
	if len(first) != 1 || first[0].Encoding != "coordination.k8s.io/v1" {
		t.Fatalf("the host has the reports %v", first)
	}

	// The server has reported, so it may write whether the host answers or not.
	h.answer.Store(http.StatusInternalServerError)
	for range 20 {
		if err := h.write(); err != nil {
			t.Fatalf("while the host is away: %v", err)
		}
	}
	if err := h.j.Ready(); err != nil {
		t.Errorf("while the host is away: %v", err)
	}
	h.answer.Store(0)

	// Another server has buried this one, as after a pause: it registers and reports again.
	h.refuse.Store(true)
	id := h.j.reporting.member.ID()
	must(t, h.local.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: string(id)}}))
	h.eventually("it is registered anew", func() error {
		if now := h.j.reporting.member.ID(); now == "" || now == id {
			return errors.New("not yet")
		}
		return nil
	})
	h.wantRefused("")
	h.refuse.Store(false)
	h.wantWritable()
	h.eventually("the first report is collected", func() error {
		now := h.reports(h.host)
		if len(now) != 1 || now[0].Server == first[0].Server {
			return fmt.Errorf("the host has the reports %v", now)
		}
		return nil
	})

	// The server's Lease in the host was deleted by mistake; then the host serves no StorageVersions for a while.
	h.refuse.Store(true)
	must(t, h.host.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: string(h.reports(h.host)[0].Server)}}))
	h.wantRefused("not reported to the host cluster")
	h.answer.Store(http.StatusNotFound)
	h.wantWritable()
	h.answer.Store(0)
	h.wantRefused("not reported to the host cluster")
	h.refuse.Store(false)
	h.wantWritable()

	must(t, h.j.running.depart())
	if own, host := h.reports(h.local), h.reports(h.host); len(own)+len(host) != 0 {
		t.Errorf("it left %v in its own etcd and %v in the host", own, host)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.early) > 0 {
		t.Errorf("buried in the host, with the permission to write: %v", h.early)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
