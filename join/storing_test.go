package join

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsapi "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	apiregistrationapi "k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/join/internal/registry"
)

// upstream returns RESTOptions as a generic server does.
type upstream struct {
	config    storagebackend.Config
	decorator generic.StorageDecorator
	err       error
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (u upstream) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{StorageConfig: u.config.ForResource(resource), Decorator: u.decorator, ResourcePrefix: resource.Resource}, u.err
}

// called returns a decorator that makes no store, and notes its name when it is called.
func called(name string, last *string) generic.StorageDecorator {
	return func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object,
		storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		*last = name
		return nil, func() {}, nil
	}
}

// TestDecoratorOf: every resource gets a fenced store; it has no watch cache if --watch-cache-sizes says
// 0. A server that reports nothing uses Kubernetes' decorator.
func TestDecoratorOf(t *testing.T) {
	t.Parallel()
	var last string
	small, none := schema.GroupResource{Resource: "small"}, schema.GroupResource{Resource: "none"}
	own := upstream{decorator: called("Kubernetes'", &last)}
	joined := &storing{
		fence: &fence.Fence{}, cached: called("cached", &last), uncached: called("uncached", &last),
		sizes: map[schema.GroupResource]int{small: 1, none: 0},
	}
	for _, test := range []struct {
		s        *storing
		resource schema.GroupResource
		want     string
	}{
		{joined, things, "cached"},
		{joined, small, "cached"},
		{joined, none, "uncached"},
		{&storing{sizes: joined.sizes}, things, "Kubernetes'"},
		{&storing{sizes: joined.sizes}, none, "Kubernetes'"},
	} {
		options, err := test.s.wrap(own).GetRESTOptions(test.resource, nil)
		must(t, err)
		if _, _, err := options.Decorator(options.StorageConfig, "", nil, nil, nil, nil, nil, nil); err != nil || last != test.want {
			t.Errorf("the store of %s is %s, want %s, error %v", test.resource, last, test.want, err)
		}
	}
}

// TestWrap: an error of the wrapped RESTOptionsGetter is passed on, and a nil getter stays nil.
func TestWrap(t *testing.T) {
	t.Parallel()
	s := &storing{}
	if getter := s.wrap(nil); getter != nil {
		t.Errorf("of no getter came %v", getter)
	}
	broken := errors.New("broken")
	if _, err := s.wrap(upstream{err: broken}).GetRESTOptions(things, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestCompleteCopies: complete does not change the storage configuration that it gets, since resources
// may share it.
func TestCompleteCopies(t *testing.T) {
	t.Parallel()
	config := storagebackend.Config{}
	given := config.ForResource(schema.GroupResource{Group: apiextensionsapi.GroupName, Resource: "customresourcedefinitions"})
	options, err := (&storing{}).complete(given.GroupResource, generic.RESTOptions{StorageConfig: given})
	must(t, err)
	if options.StorageConfig == given || given.Codec != nil || given.EncodeVersioner != nil {
		t.Errorf("the given configuration has become %+v", given)
	}
	if options.StorageConfig.Codec == nil || options.StorageConfig.EncodeVersioner == nil {
		t.Error("definitions have no codec")
	}
}

// TestCodecOf: groups with a codec that could encode to several versions get a codec for one named
// version.
func TestCodecOf(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]agree.Encoding{
		apiextensionsapi.GroupName:   "apiextensions.k8s.io/v1beta1",
		apiregistrationapi.GroupName: "apiregistration.k8s.io/v1",
		"":                           "",
		"apps":                       "",
	} {
		codec, gv, err := codecOf(group)
		must(t, err)
		if want == "" {
			if codec != nil {
				t.Errorf("%q has the codec %s", group, codec.Identifier())
			}
			continue
		}
		if got, err := fence.EncodingOf(codec); err != nil || got != want || gv.String() != string(want) {
			t.Errorf("%s is stored in %s, said to be %s, want %s, error %v", group, got, gv, want, err)
		}
	}
}

// TestNewStoring: the error for a wrong flag names the flag, and a server that reports nothing has no
// fence.
func TestNewStoring(t *testing.T) {
	t.Parallel()
	if _, err := newStoring(Config{WatchCacheSizes: []string{"configmaps"}}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "--watch-cache-sizes") {
		t.Errorf("error %v", err)
	}
	s, err := newStoring(Config{Silent: true, WatchCacheSizes: []string{"things.example.com#0"}}, nil, nil, nil)
	must(t, err)
	if size, ok := s.sizes[things]; s.fence != nil || !ok || size != 0 {
		t.Errorf("the fence is %v, sizes %v", s.fence, s.sizes)
	}
	if known, layout := s.layout(); len(known) != 0 || len(layout.Special) != 0 {
		t.Errorf("of a server without stores all is known of %v, %v", known, layout)
	}
}

// TestLayout: the layout has the prefixes under which the stores keep their objects.
func TestLayout(t *testing.T) {
	t.Parallel()
	s := newStores(t, things, registry.Leases)
	known, layout := s.layout()
	if layout.Prefix != "/registry" || len(known) != 2 || !slices.Contains(known, things) || !slices.Contains(known, registry.Leases) {
		t.Fatalf("%v, %+v", known, layout)
	}
	for gr, want := range map[schema.GroupResource]string{things: "/things/", registry.Leases: "/leases/"} {
		if got := layout.Special[gr]; got != want {
			t.Errorf("%s are in %q, want %q", gr, got, want)
		}
	}
}

// TestStorageOfAChain: each server of a chain says which of its versions are enabled; a server that does
// not say so changes nothing.
func TestStorageOfAChain(t *testing.T) {
	t.Parallel()
	j := &Join{storing: &storing{}}
	on := serverstorage.NewResourceConfig()
	on.EnableResources(things.WithVersion("v1"))
	j.Storage(&genericapiserver.Config{MergedResourceConfig: on, RESTOptionsGetter: upstream{}})
	aggregated := &genericapiserver.Config{}
	j.Storage(aggregated)
	if !j.storing.switchedOn(things.WithVersion("v1")) || j.storing.switchedOn(things.WithVersion("v2")) {
		t.Error("what the one server says is not what is on")
	}
	if aggregated.RESTOptionsGetter != nil {
		t.Error("a server that stores nothing has stores")
	}
	if aggregated.AdmissionControl == nil {
		t.Error("a server without admission lets anybody write what only Concord's controllers may")
	}
}

// switches says which resources are enabled, as a server of the chain does.
type switches sets.Set[schema.GroupVersionResource]

// ResourceEnabled implements resourceEnabled.
func (s switches) ResourceEnabled(gvr schema.GroupVersionResource) bool {
	return sets.Set[schema.GroupVersionResource](s).Has(gvr)
}

// TestSwitchedOn: each of the servers in a chain knows its own resources only, so a version is on if one
// server has it on.
func TestSwitchedOn(t *testing.T) {
	t.Parallel()
	first, second, third := things.WithVersion("v1"), things.WithVersion("v2"), things.WithVersion("v3")
	s := &storing{}
	if !s.switchedOn(first) {
		t.Error("where nothing is known of switches, all is on")
	}
	s.enabled = []resourceEnabled{switches(sets.New(first)), switches(sets.New(second))}
	for gvr, want := range map[schema.GroupVersionResource]bool{first: true, second: true, third: false} {
		if got := s.switchedOn(gvr); got != want {
			t.Errorf("%s is on: %t", gvr, got)
		}
	}
}

// TestCustomResourcesOfAServer: a definition is established as soon as one server serves it (MasterCount
// is 1), since no server accepts a write before it has reported.
func TestCustomResourcesOfAServer(t *testing.T) {
	t.Parallel()
	j := &Join{storing: &storing{}, crds: &definitions{convert: &convert.Resources{}}}
	extra := &apiextensionsapiserver.ExtraConfig{MasterCount: 3, CRDRESTOptionsGetter: upstream{}}
	j.CustomResources(extra)
	if _, ok := extra.CRDRESTOptionsGetter.(fenced); !ok || extra.MasterCount != 1 || !j.crds.stores {
		t.Errorf("%+v; custom resources are stored: %t", extra, j.crds.stores)
	}
}

// TestAnotherEtcd: a store in another etcd than its StorageVersion is refused, since it cannot be fenced.
func TestAnotherEtcd(t *testing.T) {
	s := &storing{}
	s.config.Etcd.Transport.ServerList = []string{"http://127.0.0.1:1"}
	own := s.config.Etcd
	if _, err := s.complete(things, generic.RESTOptions{StorageConfig: own.ForResource(things)}); err != nil {
		t.Error(err)
	}
	own.Transport.ServerList = []string{"http://127.0.0.1:2"}
	if _, err := s.complete(things, generic.RESTOptions{StorageConfig: own.ForResource(things)}); err == nil || !strings.Contains(err.Error(), "--etcd-servers-overrides") {
		t.Errorf("a store in another etcd: %v", err)
	}
}
