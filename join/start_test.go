package join

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	clientrest "k8s.io/client-go/rest"
)

var (
	thingsV1 = schema.GroupVersion{Group: things.Group, Version: "v1"}
	others   = schema.GroupResource{Group: things.Group, Resource: "others"}
)

// author is an aggregated API server as its author builds it. Its objects are Leases.
type author struct {
	t      *testing.T
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	config *genericapiserver.RecommendedConfig
	etcd   *genericoptions.EtcdOptions
	j      *Join
	server *genericapiserver.GenericAPIServer
}

// newAuthor returns a server that has joined, on this etcd.
func newAuthor(t *testing.T, etcd string) *author {
	t.Helper()
	a := &author{t: t, scheme: runtime.NewScheme()}
	for _, gv := range []schema.GroupVersion{thingsV1, {Group: things.Group, Version: runtime.APIVersionInternal}} {
		a.scheme.AddKnownTypes(gv, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	}
	metav1.AddToGroupVersion(a.scheme, thingsV1)
	metav1.AddToGroupVersion(a.scheme, schema.GroupVersion{Version: "v1"})
	a.codecs = serializer.NewCodecFactory(a.scheme)
	codec, err := jsonCodec(a.codecs, thingsV1)
	must(t, err)
	backend := storagebackend.NewDefaultConfig("/own", codec)
	backend.Transport.ServerList = []string{etcd}
	a.etcd = genericoptions.NewEtcdOptions(backend)
	a.config = genericapiserver.NewRecommendedConfig(a.codecs)
	a.config.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
	a.config.ExternalAddress, a.config.LoopbackClientConfig = "127.0.0.1:1", &clientrest.Config{}
	a.config.ClientConfig = &clientrest.Config{Host: "http://127.0.0.1:1"}
	a.config.SkipOpenAPIInstallation = true
	a.config.RESTOptionsGetter = upstream{config: *backend, decorator: generic.UndecoratedStorage}
	a.j, err = Config{}.Join(t.Context(), a.config, a.etcd, a.scheme)
	must(t, err)
	t.Cleanup(func() { must(t, a.j.Close()) })
	a.server, err = a.config.Config.Complete(nil).New("author", genericapiserver.NewEmptyDelegate())
	must(t, err)
	return a
}

// namespaced are strategies for stores that nobody uses.
type namespaced struct{ rest.RESTCreateUpdateStrategy }

func (namespaced) NamespaceScoped() bool { return true }

// store makes a resource's store.
func (a *author) store(gr schema.GroupResource) *genericregistry.Store {
	a.t.Helper()
	store := &genericregistry.Store{
		NewFunc: newLease, NewListFunc: func() runtime.Object { return &coordinationv1.LeaseList{} },
		DefaultQualifiedResource: gr, SingularQualifiedResource: schema.GroupResource{Group: gr.Group, Resource: strings.TrimSuffix(gr.Resource, "s")},
		CreateStrategy: namespaced{}, UpdateStrategy: namespaced{}, DeleteStrategy: a.scheme, TableConvertor: rest.NewDefaultTableConvertor(gr),
	}
	must(a.t, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: a.config.RESTOptionsGetter}))
	a.t.Cleanup(store.Destroy)
	return store
}

// install does what InstallAPIGroup does, which would require OpenAPI definitions.
func (a *author) install(storage map[string]rest.Storage) {
	a.t.Helper()
	_, _, err := (&endpoints.APIGroupVersion{
		Root: genericapiserver.APIGroupPrefix, GroupVersion: thingsV1, Storage: storage,
		ParameterCodec: runtime.NewParameterCodec(a.scheme), Serializer: a.codecs,
		Creater: a.scheme, Convertor: a.scheme, ConvertabilityChecker: a.scheme, Defaulter: a.scheme, Typer: a.scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(a.scheme), TypeConverter: managedfields.NewDeducedTypeConverter(),
		EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
	}).InstallREST(a.server.Handler.GoRestfulContainer)
	must(a.t, err)
}

// part serves a store's objects as a subresource.
type part struct{ store *genericregistry.Store }

func (p part) New() runtime.Object { return p.store.New() }
func (p part) Destroy()            {}
func (p part) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return p.store.Get(ctx, name, o)
}

// TestOutOfOrder: calls in the wrong order are refused, with an error that says so, where otherwise a server would
// write without a fence, or refuse all writes for ever.
func TestOutOfOrder(t *testing.T) {
	etcd := startTestEtcd(t)
	install := func(a *author) { a.install(map[string]rest.Storage{"things": a.store(things)}) }
	for _, test := range []struct {
		name string
		run  func(*author) error
		want string // in the error; empty: none
	}{
		{"in order", func(a *author) error {
			install(a)
			return a.j.Start(a.server)
		}, ""},
		{"a RESTOptionsGetter set after Join", func(a *author) error {
			a.config.RESTOptionsGetter = upstream{config: a.etcd.StorageConfig, decorator: generic.UndecoratedStorage}
			install(a)
			return a.j.Start(a.server)
		}, "RESTOptionsGetter was set"},
		{"stores of another RESTOptionsGetter", func(a *author) error {
			joined := a.config.RESTOptionsGetter
			a.config.RESTOptionsGetter = upstream{config: a.etcd.StorageConfig, decorator: generic.UndecoratedStorage}
			install(a)
			a.config.RESTOptionsGetter = joined
			return a.j.Start(a.server)
		}, "nothing is stored through the RESTOptionsGetter"},
		{"Start before the API group", func(a *author) error {
			err := a.j.Start(a.server)
			install(a)
			return err
		}, "install all API groups before Start"},
		{"one store after Start", func(a *author) error {
			install(a)
			must(a.t, a.j.Start(a.server))
			a.store(others)
			ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
			defer cancel()
			return a.j.running.start(genericapiserver.PostStartHookContext{Context: ctx})
		}, "others.example.com was installed after Start"},
		{"Start twice", func(a *author) error {
			install(a)
			must(a.t, a.j.Start(a.server))
			return a.j.Start(a.server)
		}, "Start was called twice"},
		{"Start after PrepareRun", func(a *author) error {
			install(a)
			a.server.PrepareRun()
			return a.j.Start(a.server)
		}, "Start, which comes before PrepareRun"},
		{"Join twice", func(a *author) error {
			_, err := Config{}.Join(a.t.Context(), a.config, a.etcd, a.scheme)
			return err
		}, "Join was called twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.run(newAuthor(t, etcd))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestSubresourceAlone: a resource whose objects are reached only as a subresource of another one is reported, since
// it is written, and not as served: nobody could migrate it through the API.
func TestSubresourceAlone(t *testing.T) {
	a := newAuthor(t, startTestEtcd(t))
	a.install(map[string]rest.Storage{"things": a.store(things), "things/other": part{a.store(others)}})
	must(t, a.j.Start(a.server))
	served := map[schema.GroupResource]int{}
	for _, r := range a.j.hosting.Reports {
		served[r.GroupResource] = len(r.Served)
	}
	if n, reported := served[others]; n != 0 || !reported || served[things] != 1 {
		t.Errorf("versions that are served: %v", served)
	}
}
