package server

import (
	"fmt"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
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

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/server/builtin"
	builtinopenapi "github.com/concord-dev/concord/server/builtin/openapi"
)

// chain is the three generic servers of the control plane; a request goes from the
// first to the last until one knows its path.
type chain struct {
	aggregator *aggregatorapiserver.APIAggregator
	core       *genericapiserver.GenericAPIServer
	extensions *apiextensionsapiserver.CustomResourceDefinitions
}

// newChain assembles the servers. j is nil without the protocol.
func newChain(o *Options, base *genericapiserver.Config, certs *certificates, shared informers.SharedInformerFactory, j *join.Join) (*chain, error) {
	aggregated, webhooks, err := o.servicesOf(shared)
	if err != nil {
		return nil, err
	}
	extensions, err := newExtensions(o, base, shared, j, webhooks)
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	core, err := newCore(o, base, shared, j, extensions.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	aggregator, err := newAggregator(o, base, certs, shared, j, aggregated, core)
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
func applyEtcd(o *Options, c *genericapiserver.Config, codecs serializer.CodecFactory, encoding schema.GroupVersion) error {
	json, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return fmt.Errorf("%s has no JSON serializer", encoding)
	}
	etcd := *o.Etcd
	etcd.SkipHealthEndpoints = true
	etcd.StorageConfig.Codec = codecs.CodecForVersions(json.Serializer, codecs.UniversalDeserializer(), encoding, runtime.InternalGroupVersioner)
	etcd.StorageConfig.EncodeVersioner = encoding
	etcd.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	return etcd.ApplyTo(c)
}

func newExtensions(o *Options, base *genericapiserver.Config, shared informers.SharedInformerFactory, j *join.Join, services webhook.ServiceResolver) (*apiextensionsapiserver.CustomResourceDefinitions, error) {
	c := copyConfig(base)
	if err := applyEtcd(o, &c, apiextensionsapiserver.Codecs, apiextensionsv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	c.MergedResourceConfig = apiextensionsapiserver.DefaultAPIResourceConfigSource()
	webhooks := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.LoopbackClientConfig, noopoteltrace.NewTracerProvider())
	config := &apiextensionsapiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: shared},
		ExtraConfig: apiextensionsapiserver.ExtraConfig{
			CRDRESTOptionsGetter: apiextensionsoptions.NewCRDRESTOptionsGetter(*o.Etcd, c.ResourceTransformers, c.StorageObjectCountTracker),
			MasterCount:          1,
			ServiceResolver:      services,
			AuthResolverWrapper:  webhooks,
		},
	}
	if j != nil {
		j.Storage(&config.GenericConfig.Config)
		j.CustomResources(&config.ExtraConfig)
	}
	// Until every path is installed this is a 503 and no 404, which clients would believe.
	notFound := notfoundhandler.New(c.Serializer, filters.NoMuxAndDiscoveryIncompleteKey)
	return config.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
}

func newCore(o *Options, base *genericapiserver.Config, shared informers.SharedInformerFactory, j *join.Join, delegate *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error) {
	c := copyConfig(base)
	etcd := *o.Etcd
	etcd.SkipHealthEndpoints = true
	etcd.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	factory := builtin.StorageFactory(o.plan, etcd.StorageConfig)
	if err := etcd.ApplyWithStorageFactoryTo(factory, &c); err != nil {
		return nil, err
	}
	c.MergedResourceConfig = resourceConfig(o.plan)
	if j != nil {
		j.Storage(&c)
	}
	server, err := c.Complete(shared).New("concord", delegate)
	if err != nil {
		return nil, err
	}
	groups, err := builtin.Install(o.plan, c.RESTOptionsGetter, builtin.Deps{
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

// resourceConfig switches on what the plan serves.
func resourceConfig(plan *compat.Plan) *serverstorage.ResourceConfig {
	config := serverstorage.NewResourceConfig()
	for _, r := range plan.Resources {
		for _, v := range r.Served {
			if v.Served {
				config.EnableResources(schema.GroupVersionResource{Group: r.Group, Version: v.Version, Resource: r.Resource})
			}
		}
	}
	return config
}

func newAggregator(o *Options, base *genericapiserver.Config, certs *certificates, shared informers.SharedInformerFactory, j *join.Join, services aggregatorapiserver.ServiceResolver, delegate *genericapiserver.GenericAPIServer) (*aggregatorapiserver.APIAggregator, error) {
	c := copyConfig(base)
	// The aggregator serves the merged OpenAPI document itself.
	c.SkipOpenAPIInstallation = true
	if err := applyEtcd(o, &c, aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	// v1beta1 was removed in 1.22: no release that can be emulated serves it.
	c.MergedResourceConfig = aggregatorapiserver.DefaultAPIResourceConfigSource()
	c.MergedResourceConfig.DisableVersions(apiregistrationv1beta1.SchemeGroupVersion)
	config := &aggregatorapiserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: shared},
		ExtraConfig:   o.aggregation(certs, services),
	}
	if j != nil {
		j.Storage(&config.GenericConfig.Config)
		j.Handlers(&config.GenericConfig.Config)
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
