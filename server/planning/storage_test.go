package planning

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	lifecyclerest "k8s.io/kubernetes/pkg/registry/lifecycle/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"

	"github.com/concord-dev/concord/compat"
)

// effective returns the versions of a pair: "1.36" with the default min compatibility version, or "1.37/1.37".
func effective(t testing.TB, s string) basecompatibility.EffectiveVersion {
	t.Helper()
	emulation, minimum, _ := strings.Cut(s, "/")
	e, m, err := compat.ParseVersions(compat.BinaryVersion(), emulation, minimum)
	must(t, err)
	v := basecompatibility.NewEffectiveVersionFromString(compat.Binary, "", "")
	v.SetEmulationVersion(e)
	v.SetMinCompatibilityVersion(m)
	return v
}

func newFactory(t testing.TB, v basecompatibility.EffectiveVersion, resources *serverstorage.ResourceConfig) *serverstorage.DefaultStorageFactory {
	t.Helper()
	c := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(v)
	c.APIResourceConfig = resources
	f, err := c.Complete(genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))).New()
	must(t, err)
	return f
}

// builtStores returns RESTOptions without an etcd, and records the version in which each resource's codec encodes.
type builtStores struct {
	factory   serverstorage.StorageFactory
	encodings map[schema.GroupResource]string
}

func (b builtStores) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := b.factory.NewConfig(gr, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	raw, err := runtime.Encode(config.Codec, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	var written struct{ APIVersion string }
	if err := json.Unmarshal(raw, &written); err != nil {
		return generic.RESTOptions{}, err
	}
	b.encodings[gr] = written.APIVersion
	return generic.RESTOptions{
		StorageConfig: config,
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object,
			storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return nil, func() {}, nil
		},
		ResourcePrefix: b.factory.ResourcePrefix(gr),
	}, nil
}

// A face is a control plane as Kubernetes assembles it, without the core group of kube-apiserver, whose storage needs an etcd.
type face struct {
	name      string
	config    func() *serverstorage.ResourceConfig
	serves    func() sets.Set[schema.GroupResource]
	providers []controlplaneapiserver.RESTStorageProvider
}

func faces() []face {
	authz := authorizerfactory.NewAlwaysAllowAuthorizer()
	client := fake.NewClientset()
	shared := informers.NewSharedInformerFactory(client, 0)
	generic := []controlplaneapiserver.RESTStorageProvider{
		&corerest.GenericConfig{},
		apiserverinternalrest.StorageProvider{},
		authenticationrest.RESTStorageProvider{Authenticator: authenticator.RequestFunc(nil)},
		authorizationrest.RESTStorageProvider{Authorizer: authz, RuleResolver: nil},
		certificatesrest.RESTStorageProvider{Authorizer: authz, Generic: true},
		coordinationrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: authz},
		svmrest.RESTStorageProvider{},
		flowcontrolrest.RESTStorageProvider{InformerFactory: shared},
		admissionregistrationrest.RESTStorageProvider{Authorizer: authz, DiscoveryClient: client.Discovery()},
		eventsrest.RESTStorageProvider{},
	}
	kube := append(slices.DeleteFunc(slices.Clone(generic[1:]), func(p controlplaneapiserver.RESTStorageProvider) bool {
		return p.GroupName() == "certificates.k8s.io"
	}),
		certificatesrest.RESTStorageProvider{Authorizer: authz},
		autoscalingrest.RESTStorageProvider{},
		batchrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		lifecyclerest.RESTStorageProvider{},
		networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		schedulingrest.RESTStorageProvider{},
		storagerest.RESTStorageProvider{},
		appsrest.StorageProvider{},
		resourcerest.RESTStorageProvider{NamespaceClient: client.CoreV1().Namespaces(), Authorizer: authz},
	)
	return []face{
		{"generic", controlplane.DefaultGenericAPIResourceConfigSource, upstreamGeneric, generic},
		{"kube", controlplane.DefaultAPIResourceConfigSource, Kube, kube},
	}
}

// install does what Kubernetes does at start, with a plan or without one (nil). It returns the served and the stored versions.
func (f face) install(t *testing.T, v basecompatibility.EffectiveVersion, o Options, plan *compat.Plan) (sets.Set[schema.GroupVersionResource], map[schema.GroupResource]string, error) {
	t.Helper()
	merged, err := resourceconfig.MergeAPIResourceConfigs(f.config(), o.RuntimeConfig, legacyscheme.Scheme)
	if err == nil && o.ForwardCompatible {
		merged, err = resourceconfig.EmulationForwardCompatibleResourceConfig(merged, o.RuntimeConfig, legacyscheme.Scheme)
	}
	if err != nil {
		return nil, nil, err
	}
	config := &genericapiserver.Config{EffectiveVersion: v, MergedResourceConfig: merged, EmulationForwardCompatible: o.ForwardCompatible}
	stores := builtStores{newFactory(t, v, merged), map[schema.GroupResource]string{}}
	if plan != nil {
		if err := ApplyStorage(plan, stores.factory); err != nil {
			return nil, nil, err
		}
		if err := ApplyAPIs(plan, config); err != nil {
			return nil, nil, err
		}
	}
	evaluator, err := genericapiserver.NewResourceExpirationEvaluatorFromOptions(genericapiserver.ResourceExpirationEvaluatorOptions{
		CurrentVersion:                          v.EmulationVersion(),
		EmulationForwardCompatible:              config.EmulationForwardCompatible,
		RuntimeConfigEmulationForwardCompatible: config.RuntimeConfigEmulationForwardCompatible,
	})
	if err != nil {
		return nil, nil, err
	}
	served := sets.New[schema.GroupVersionResource]()
	for _, p := range f.providers {
		info, err := p.NewRESTStorage(merged, stores)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.GroupName(), err)
		}
		if err := evaluator.RemoveUnavailableKinds(p.GroupName(), legacyscheme.Scheme, info.VersionedResourcesStorageMap, merged); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.GroupName(), err)
		}
		for version, resources := range info.VersionedResourcesStorageMap {
			for resource := range resources {
				served.Insert(schema.GroupVersionResource{Group: p.GroupName(), Version: version, Resource: resource})
			}
		}
	}
	return served, stores.encodings, nil
}

// withGatedAPIs turns on the features without which Kubernetes builds no storage for some resources.
func withGatedAPIs(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.EvictionRequestAPI: true, features.GenericWorkload: true, features.CompositePodGroup: true, features.TopologyAwareWorkloadScheduling: true,
	})
}

// upstreamGeneric returns the resources of the generic face without those that package server/generic installs itself.
func upstreamGeneric() sets.Set[schema.GroupResource] {
	return Generic().Difference(genericAlso).Delete(schema.GroupResource{Resource: "services"})
}

// TestInstalledAsPlanned: with a plan applied, the storage that Kubernetes builds serves and stores what the plan says, in both faces, at all
// pairs of versions. This checks resource names, tables and the two Apply functions together.
func TestInstalledAsPlanned(t *testing.T) {
	withGatedAPIs(t)
	configs := []struct {
		runtimeConfig map[string]string
		forward       bool
	}{
		{nil, false},
		{nil, true},
		{map[string]string{"api/beta": "true"}, false},
		{map[string]string{"api/beta": "true"}, true},
		{map[string]string{"api/all": "true"}, false},
		{map[string]string{"storagemigration.k8s.io/v1": "true", "certificates.k8s.io/v1/clustertrustbundles": "true", "certificates.k8s.io/v1beta1": "true"}, false},
		{map[string]string{"api/beta": "true", "storagemigration.k8s.io/v1/storageversionmigrations": "true"}, false},
		{map[string]string{
			"api/all": "false", "v1": "true", "storage.k8s.io/v1": "true", "apps/v1/deployments": "true",
			"coordination.k8s.io/v1": "true", "apiextensions.k8s.io/v1": "true", "apiregistration.k8s.io/v1": "true",
		}, false},
	}
	for _, f := range faces() {
		groups := sets.New[string]()
		for _, p := range f.providers {
			groups.Insert(p.GroupName())
		}
		for _, e := range compat.AllowedEmulation(compat.BinaryVersion()) {
			for _, m := range compat.AllowedMinCompatibility(compat.BinaryVersion(), e) {
				v := effective(t, fmt.Sprintf("%s/%s", e, m))
				for _, c := range configs {
					if c.runtimeConfig["api/all"] == "true" && e.LessThan(compat.BinaryVersion()) || c.forward && e.EqualTo(compat.BinaryVersion()) {
						continue
					}
					o := Options{Effective: v, Serves: f.serves(), RuntimeConfig: c.runtimeConfig, ForwardCompatible: c.forward}
					plan, err := New(o)
					must(t, err)
					served, stored, err := f.install(t, v, o, plan)
					must(t, err)
					at := fmt.Sprintf("%s, emulation %s, min compatibility %s, %v, forward compatible %t", f.name, e, m, c.runtimeConfig, c.forward)
					comparePlan(t, at, plan, groups, served, stored)
				}
			}
		}
	}
}

func comparePlan(t *testing.T, at string, plan *compat.Plan, groups sets.Set[string], served sets.Set[schema.GroupVersionResource], stored map[schema.GroupResource]string) {
	t.Helper()
	for _, r := range plan.Resources {
		if !groups.Has(r.Group) {
			continue
		}
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		for _, v := range r.Served {
			gvr := gr.WithVersion(v.Version)
			if want := v.Served && !elsewhere[gr]; served.Has(gvr) != want {
				t.Errorf("%s: %s served: %t, planned: %t, %s", at, gvr, served.Has(gvr), want, v.Reason)
			}
			served.Delete(gvr)
		}
		encoding, built := stored[gr]
		delete(stored, gr)
		switch anyServed := !elsewhere[gr] && slices.ContainsFunc(r.Served, func(v compat.VersionPlan) bool { return v.Served }); {
		case r.Storage.Empty() && built:
			t.Errorf("%s: %s has storage, in %s, and is not to be stored", at, gr, encoding)
		case !r.Storage.Empty() && anyServed && !built:
			t.Errorf("%s: %s is served and has no storage", at, gr)
		case built && encoding != r.Storage.String():
			t.Errorf("%s: %s is stored in %s, planned: %s", at, gr, encoding, r.Storage)
		}
	}
	for gr, encoding := range stored {
		if groups.Has(gr.Group) {
			t.Errorf("%s: %s is stored in %s, and the plan does not know it", at, gr, encoding)
		}
	}
	for gvr := range served {
		name, sub, nested := strings.Cut(gvr.Resource, "/")
		if !nested {
			t.Errorf("%s: %s is served, and the plan does not know it", at, gvr)
			continue
		}
		for _, r := range plan.Resources {
			for _, v := range r.Served {
				parent := schema.GroupVersionResource{Group: r.Group, Version: v.Version, Resource: r.Resource}
				if r.Group == gvr.Group && r.Resource == name && served.Has(parent.GroupVersion().WithResource(gvr.Resource)) != v.Served {
					t.Errorf("%s: %s of %s served: %t", at, sub, parent, !v.Served)
				}
			}
		}
	}
}
