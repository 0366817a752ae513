package join

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
)

// refusing implements Permits for tests that write nothing: it fails the test if a store asks for a
// permission.
type refusing struct{ t *testing.T }

// Revision implements fence.Permits.
func (r refusing) Revision(context.Context, schema.GroupResource, agree.Encoding) (int64, error) {
	r.t.Error("somebody writes")
	return 0, context.Canceled
}

// Moved implements fence.Permits.
func (r refusing) Moved(context.Context, schema.GroupResource, agree.Encoding, int64, int64, []agree.Report) error {
	r.t.Error("somebody has written")
	return context.Canceled
}

// newStores returns a storing with stores of these resources, whose objects are Leases. Its etcd does
// not exist, and no test reads or writes.
func newStores(t *testing.T, resources ...schema.GroupResource) *storing {
	t.Helper()
	const nowhere = "http://127.0.0.1:1"
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{nowhere}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	f, err := fence.New(fence.Config{Client: client, Permits: refusing{t}})
	must(t, err)
	t.Cleanup(f.Close)
	s := &storing{fence: f, cached: f.Decorator(false), uncached: f.Decorator(false)}
	s.config.Etcd.Prefix, s.config.Etcd.Transport.ServerList = "/registry", []string{nowhere}
	codec, err := jsonCodec(serializer.NewCodecFactory(registry.LeaseScheme), coordinationv1.SchemeGroupVersion)
	must(t, err)
	for _, gr := range resources {
		options, err := s.storageOf(gr, codec)
		must(t, err)
		_, destroy, err := options.Decorator(options.StorageConfig, "/"+gr.Resource, thingKey, newLease,
			func() runtime.Object { return &coordinationv1.LeaseList{} }, storage.DefaultClusterScopedAttr, nil, nil)
		must(t, err)
		t.Cleanup(destroy)
	}
	return s
}

func newLease() runtime.Object { return &coordinationv1.Lease{} }

// twoVersions returns a scheme with Leases in the internal version, in v1, which is preferred, and in
// v1beta1.
func twoVersions(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: coordinationv1.GroupName, Version: runtime.APIVersionInternal}, &coordinationv1.Lease{})
	for _, add := range []func(*runtime.Scheme) error{coordinationv1beta1.AddToScheme, coordinationv1.AddToScheme} {
		must(t, add(scheme))
	}
	must(t, scheme.SetVersionPriority(coordinationv1.SchemeGroupVersion, coordinationv1beta1.SchemeGroupVersion))
	return scheme
}

// TestResourceOf: the report of a resource has the version that its store writes, and the versions in
// which the schemes know its kind.
func TestResourceOf(t *testing.T) {
	t.Parallel()
	const v1, v1beta1 = "coordination.k8s.io/v1", "coordination.k8s.io/v1beta1"
	two, others := twoVersions(t), runtime.NewScheme()
	shared := runtime.NewScheme() // the type is also one of a group whose name sorts, and is registered, before
	for _, gv := range []schema.GroupVersion{{Group: "a.example.com", Version: "v2"}, coordinationv1.SchemeGroupVersion} {
		shared.AddKnownTypes(gv, &coordinationv1.Lease{})
	}
	for _, test := range []struct {
		name              string
		encoding          agree.Encoding
		object            runtime.Object
		schemes           []*runtime.Scheme
		serves            []string
		decodable, served []string
		err               string
	}{
		{name: "all is served", encoding: v1, schemes: []*runtime.Scheme{two}, serves: []string{v1, v1beta1}, decodable: []string{v1, v1beta1}, served: []string{v1, v1beta1}},
		{name: "what is stored is not served", encoding: v1beta1, schemes: []*runtime.Scheme{two}, serves: []string{v1}, decodable: []string{v1, v1beta1}, served: []string{v1}},
		{name: "nothing is served", encoding: v1, schemes: []*runtime.Scheme{two}, decodable: []string{v1, v1beta1}},
		{name: "the scheme is the second", encoding: v1, schemes: []*runtime.Scheme{others, two}, serves: []string{v1}, decodable: []string{v1, v1beta1}, served: []string{v1}},
		{name: "the first scheme that knows the kind decides", encoding: v1, schemes: []*runtime.Scheme{registry.LeaseScheme, two}, serves: []string{v1, v1beta1}, decodable: []string{v1}, served: []string{v1}},
		{name: "a type of two groups", encoding: v1, schemes: []*runtime.Scheme{shared}, serves: []string{v1}, decodable: []string{v1}, served: []string{v1}},
		{name: "no scheme", encoding: v1, err: "knows the kind that leases.coordination.k8s.io stores as " + v1},
		{name: "a kind that no scheme knows", encoding: "v1", object: &corev1.Pod{}, schemes: []*runtime.Scheme{two}, err: "no scheme of Config.Schemes"},
		{name: "the stored version is unknown", encoding: v1beta1, schemes: []*runtime.Scheme{registry.LeaseScheme}, err: "stores as " + v1beta1},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := fence.Store{GroupResource: registry.Leases, Encoding: test.encoding, New: newLease}
			if test.object != nil {
				store.New = func() runtime.Object { return test.object }
			}
			r, err := resourceOf(store, test.schemes, func(gvr schema.GroupVersionResource) bool {
				if gvr.Resource != registry.Leases.Resource {
					t.Errorf("it is asked whether %s is served", gvr)
				}
				return slices.Contains(test.serves, gvr.GroupVersion().String())
			})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			want := member.Resource{GroupResource: registry.Leases, Encoding: test.encoding, Decodable: test.decodable, Served: test.served}
			if err != nil || !reflect.DeepEqual(r, want) {
				t.Errorf("%+v, error %v, want %+v", r, err, want)
			}
		})
	}
}

// TestReportsOf: every built-in resource that is stored is reported, except for an aggregated server's
// own Leases and StorageVersions.
func TestReportsOf(t *testing.T) {
	t.Parallel()
	s := newStores(t, things, registry.Leases, storageversion.Resource)
	all := func(schema.GroupVersionResource) bool { return true }
	for _, test := range []struct {
		name    string
		hosting *hosting.Host
		want    []schema.GroupResource
	}{
		{"a cluster's own server", nil, []schema.GroupResource{registry.Leases, things, storageversion.Resource}},
		{"an aggregated server", &hosting.Host{}, []schema.GroupResource{things}},
	} {
		s.config.Schemes = []*runtime.Scheme{registry.LeaseScheme}
		r := &reporting{host: test.hosting}
		reports, err := r.reportsOf(s, all)
		must(t, err)
		got, want := sets.New[schema.GroupResource](), sets.New(test.want...)
		for _, r := range reports {
			got.Insert(r.GroupResource)
			if r.Encoding != "coordination.k8s.io/v1" || len(r.Decodable) != 1 || len(r.Served) != 1 {
				t.Errorf("%s: %+v", test.name, r)
			}
		}
		if !got.Equal(want) || len(reports) != len(want) {
			t.Errorf("%s reports %v, want %v", test.name, reports, want)
		}
		s.config.Schemes = nil
		if reports, err := r.reportsOf(s, all); err == nil {
			t.Errorf("%s without schemes reports %v", test.name, reports)
		}
	}
}

// TestServedAt: a version is served if the server has its path, and neither the emulated release nor
// --runtime-config turns it off.
func TestServedAt(t *testing.T) {
	t.Parallel()
	cronJobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}
	off := sets.New(cronJobs)
	at := map[string]sets.Set[string]{"/apis/example.com/v1": sets.New("boxes")}
	served := servedAt([]string{"/api", "/api/v1", "/apis/batch", "/apis/batch/v1", "/apis/example.com/v1"}, at, func(gvr schema.GroupVersionResource) bool { return !off.Has(gvr) })
	for gvr, want := range map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "secrets"}:                   true,
		{Version: "v2", Resource: "secrets"}:                   false,
		{Group: "batch", Version: "v1", Resource: "jobs"}:      true,
		{Group: "batch", Version: "v1beta1", Resource: "jobs"}: false,
		cronJobs: false,
		{Group: "example.com", Version: "v1", Resource: "boxes"}:           true,
		{Group: "example.com", Version: "v1", Resource: "depots"}:          false, // only as a subresource of another one
		storageversion.Resource.WithVersion("v1alpha1"):                    true,  // the path is installed later
		{Group: "example.com", Version: "v1", Resource: "storageversions"}: false,
	} {
		if got := served(gvr); got != want {
			t.Errorf("%s is served: %t", gvr, got)
		}
	}
}
