package server

import (
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationv1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/concord-dev/concord/server/builtin"
	builtinopenapi "github.com/concord-dev/concord/server/builtin/openapi"
	"github.com/concord-dev/concord/server/pki"
)

// chain is the three generic servers of the control plane; a request goes from the
// first to the last until one knows its path.
type chain struct {
	aggregator *aggregatorapiserver.APIAggregator
	core       *genericapiserver.GenericAPIServer
	extensions *apiextensionsapiserver.CustomResourceDefinitions
}

// decorate replaces the storage of everything that getter configures.
type decorate func(generic.RESTOptionsGetter) generic.RESTOptionsGetter

// newChain assembles the servers. custom is told how custom resources are stored, and how their
// conversion webhooks are found; migrated are those whose conversions may be made together.
func newChain(o *Options, base *genericapiserver.Config, certs *pki.Certificates, shared informers.SharedInformerFactory, storage decorate, custom func(generic.RESTOptionsGetter, webhook.ServiceResolver), migrated *underWay) (*chain, error) {
	aggregated, webhooks, err := o.servicesOf(shared)
	if err != nil {
		return nil, err
	}
	extensions, err := newExtensions(o, base, shared, storage, custom, webhooks, migrated)
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	core, err := newCore(o, base, shared, storage, extensions.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	aggregator, err := newAggregator(o, base, certs, shared, storage, aggregated, core)
	if err != nil {
		return nil, fmt.Errorf("aggregation: %w", err)
	}
	return &chain{aggregator: aggregator, core: core, extensions: extensions}, nil
}

// copyConfig returns base for one more server of the chain.
func copyConfig(base *genericapiserver.Config) genericapiserver.Config {
	c := *base
	c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	c.RESTOptionsGetter = nil
	return c
}

// applyEtcd gives c a storage whose objects are encoded in JSON of one version. The codec
// says so in its identifier, which is how the fence knows what a store writes.
func applyEtcd(o *Options, c *genericapiserver.Config, codecs serializer.CodecFactory, encoding schema.GroupVersion, storage decorate) error {
	json, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return fmt.Errorf("%s has no JSON serializer", encoding)
	}
	etcd := *o.Etcd
	etcd.SkipHealthEndpoints = true
	etcd.StorageConfig.Codec = codecs.CodecForVersions(json.Serializer, codecs.UniversalDeserializer(), encoding, runtime.InternalGroupVersioner)
	etcd.StorageConfig.EncodeVersioner = encoding
	etcd.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	if err := etcd.ApplyTo(c); err != nil {
		return err
	}
	c.RESTOptionsGetter = storage(c.RESTOptionsGetter)
	return nil
}

func newExtensions(o *Options, base *genericapiserver.Config, shared informers.SharedInformerFactory, storage decorate, custom func(generic.RESTOptionsGetter, webhook.ServiceResolver), services webhook.ServiceResolver, migrated *underWay) (*apiextensionsapiserver.CustomResourceDefinitions, error) {
	c := copyConfig(base)
	if err := applyEtcd(o, &c, apiextensionsapiserver.Codecs, apiextensionsv1.SchemeGroupVersion, storage); err != nil {
		return nil, err
	}
	c.MergedResourceConfig = apiextensionsapiserver.DefaultAPIResourceConfigSource()
	crs := storage(apiextensionsoptions.NewCRDRESTOptionsGetter(*o.Etcd, c.ResourceTransformers, c.StorageObjectCountTracker))
	custom(crs, services)
	config := &apiextensionsapiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: shared},
		ExtraConfig: apiextensionsapiserver.ExtraConfig{
			CRDRESTOptionsGetter: crs,
			// One: Established needs no wait, since no server takes a write before it has reported.
			MasterCount:         1,
			ServiceResolver:     services,
			AuthResolverWrapper: through(o.webhooks(c.LoopbackClientConfig), func(next http.RoundTripper) http.RoundTripper { return newReviews(next, migrated) }),
		},
	}
	// Until every path is installed this is a 503 and no 404, which clients would believe.
	notFound := notfoundhandler.New(c.Serializer, filters.NoMuxAndDiscoveryIncompleteKey)
	return config.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
}

func newCore(o *Options, base *genericapiserver.Config, shared informers.SharedInformerFactory, storage decorate, delegate *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error) {
	c := copyConfig(base)
	etcd := *o.Etcd
	etcd.SkipHealthEndpoints = true
	etcd.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	factory := builtin.StorageFactory(o.plan, etcd.StorageConfig)
	if err := etcd.ApplyWithStorageFactoryTo(factory, &c); err != nil {
		return nil, err
	}
	getter := storage(c.RESTOptionsGetter)
	c.RESTOptionsGetter = getter
	server, err := c.Complete(shared).New("concord", delegate)
	if err != nil {
		return nil, err
	}
	groups, err := builtin.Install(o.plan, getter, builtin.Deps{
		Authorizer:       c.Authorization.Authorizer,
		Rules:            c.RuleResolver,
		MinCompatibility: o.versions.minCompatibility,
		Features:         c.FeatureGate,
	})
	if err != nil {
		return nil, err
	}
	var named []*genericapiserver.APIGroupInfo
	for _, group := range groups {
		if group.PrioritizedVersions[0].Group != "" {
			named = append(named, group)
			continue
		}
		if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, group); err != nil {
			return nil, err
		}
	}
	if err := server.InstallAPIGroups(named...); err != nil {
		return nil, err
	}
	return server, nil
}

func newAggregator(o *Options, base *genericapiserver.Config, certs *pki.Certificates, shared informers.SharedInformerFactory, storage decorate, services aggregatorapiserver.ServiceResolver, delegate *genericapiserver.GenericAPIServer) (*aggregatorapiserver.APIAggregator, error) {
	c := copyConfig(base)
	// The aggregator serves the merged OpenAPI document itself.
	c.SkipOpenAPIInstallation = true
	if err := applyEtcd(o, &c, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion, storage); err != nil {
		return nil, err
	}
	// v1beta1 was removed in 1.22: no release that can be emulated serves it.
	c.MergedResourceConfig = aggregatorapiserver.DefaultAPIResourceConfigSource()
	c.MergedResourceConfig.DisableVersions(apiregistrationv1beta1.SchemeGroupVersion)
	config := &aggregatorapiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: shared},
		ExtraConfig:   o.aggregation(certs, services),
	}
	// The chain's protocol hooks stand on this last server, which runs them all.
	config.GenericConfig.PostStartHooks = base.PostStartHooks
	return config.Complete().NewWithDelegate(delegate)
}

// definitions merges the OpenAPI definitions of the three servers.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	merged := map[string]common.OpenAPIDefinition{}
	for _, get := range []common.GetOpenAPIDefinitions{apiextensionsopenapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions, builtinopenapi.GetOpenAPIDefinitions} {
		for name, definition := range get(ref) {
			merged[name] = definition
		}
	}
	return merged
}

// applyOpenAPI sets the documents' definitions and names.
func applyOpenAPI(c *genericapiserver.Config) {
	namer := builtin.DefinitionNamer(apiextensionsapiserver.Scheme, aggregatorscheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Concord"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title = "Concord"
}

// extraResources are the persisted resources of the two other servers, which have one
// version at every release that can be emulated.
func extraResources() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: apiextensions.GroupName, Version: "v1", Resource: "customresourcedefinitions"},
		{Group: apiregistration.GroupName, Version: "v1", Resource: "apiservices"},
	}
}

var extraKinds = map[string]string{"customresourcedefinitions": "CustomResourceDefinition", "apiservices": "APIService"}

// protocolResources are what the protocol is made of.
var protocolResources = []schema.GroupVersionResource{
	{Version: "v1", Resource: "namespaces"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Resource: "storageversions"},
}
