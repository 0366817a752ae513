package generic

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/pkg/apis/apiserverinternal"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/gates/ratchet"
	"github.com/concord-dev/concord/server/planning"
)

// serverName is the component in the servers' upstream identity Leases. It differs from kube-apiserver's: the protocol
// itself makes the Leases of participants.
const serverName = "concord-server"

// resourceConfig has the APIs that are served unless --runtime-config says otherwise.
func resourceConfig() *serverstorage.ResourceConfig {
	config := controlplane.DefaultGenericAPIResourceConfigSource()
	config.EnableVersions(discoveryv1.SchemeGroupVersion, storagemigrationv1.SchemeGroupVersion)
	return config
}

// configs are the configurations of the servers of the delegation chain, from the first to the last one that a request
// meets.
type configs struct {
	aggregator   *aggregatorapiserver.Config
	controlPlane *controlplaneapiserver.Config
	extensions   *apiextensionsapiserver.Config
}

// newConfigs returns the configurations of the chain's servers.
func (o *Options) newConfigs(options controlplaneoptions.CompletedOptions) (*configs, error) {
	// The key that encrypts a value has to be known when it is written: the keyring encrypts, not Kubernetes.
	options.Etcd.EncryptionProviderConfigFilepath, options.Etcd.EncryptionProviderConfigAutomaticReload = "", false
	reachTokens := freshTokens(o)
	shared, informers, storage, err := controlplaneapiserver.BuildGenericConfig(
		options,
		planning.Schemes,
		resourceConfig(),
		generatedopenapi.GetOpenAPIDefinitions,
		nil,
	)
	if err != nil {
		return nil, err
	}
	if err := reachTokens(shared.LoopbackClientConfig); err != nil {
		return nil, err
	}
	if shared.EgressSelector, err = newEgressSelector(options.EgressSelector.ConfigFile, shared.EgressSelector, o.Outbound.Dial()); err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	shared.EffectiveVersion = gates.Reported(shared.EffectiveVersion, o.registry())
	// Upstream's is the same for all servers of a host.
	shared.APIServerID = storageversion.NewUpstreamIdentity()
	if err := planning.ApplyAPIs(o.plan, shared); err != nil {
		return nil, err
	}
	if err := planning.ApplyStorage(o.plan, storage); err != nil {
		return nil, err
	}
	resolver, err := newServiceResolver(informers, options.EnableAggregatorRouting)
	if err != nil {
		return nil, err
	}
	services := o.Outbound.Resolver(resolver)
	kube, initializers, err := controlplaneapiserver.CreateConfig(options, shared, informers, nil, storage, services, nil)
	if err != nil {
		return nil, err
	}
	// Upstream's dials by itself, to wherever. There are no nodes to be reached by it.
	kube.ProxyTransport.DialContext = o.Outbound.Dial()
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(kube.ProxyTransport, shared.EgressSelector, shared.LoopbackClientConfig, shared.TracerProvider)
	// One server: where there are more, upstream has a CRD established 5 s later.
	extensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(*shared, informers, initializers, options, 1, services, auth)
	if err != nil {
		return nil, err
	}
	crds := &extensions.GenericConfig.Config
	crds.AdmissionControl = ratchet.Admission(crds.AdmissionControl, o.registry().FeatureGateFor(gates.Concord), crds.FeatureGate)
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*shared, options, informers, services, kube.ProxyTransport, kube.PeerProxy, initializers)
	if err != nil {
		return nil, err
	}
	return &configs{aggregator: aggregator, controlPlane: kube, extensions: extensions}, nil
}

// newChain builds the servers: the aggregator, which every request meets first, the built-in
// resources and the custom ones. stopping is closed when they are to stop.
func newChain(c *configs, stopping <-chan struct{}) (*aggregatorapiserver.APIAggregator, error) {
	kube := c.controlPlane.Complete()
	extensions, err := c.extensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(
		notfoundhandler.New(kube.Generic.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)))
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	builtin, err := kube.New(serverName, extensions.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	providers, err := storageProviders(&kube)
	if err != nil {
		return nil, err
	}
	if err := builtin.InstallAPIs(stoppable(providers, stopping)...); err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	crds := extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	servesCRDs := c.extensions.GenericConfig.MergedResourceConfig.ResourceEnabled(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	aggregator, err := controlplaneapiserver.CreateAggregatorServer(c.aggregator.Complete(), builtin.GenericAPIServer, crds, servesCRDs, controlplaneapiserver.DefaultGenericAPIServicePriorities())
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	return aggregator, nil
}

// storageProviders are upstream's for a control plane without pods, with Services, and without
// StorageVersions, which package join serves.
func storageProviders(kube *controlplaneapiserver.CompletedConfig) ([]controlplaneapiserver.RESTStorageProvider, error) {
	client, err := kubernetes.NewForConfig(kube.Generic.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	providers, err := kube.GenericStorageProviders(client.Discovery())
	if err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	providers = slices.DeleteFunc(providers, func(p controlplaneapiserver.RESTStorageProvider) bool {
		return p.GroupName() == apiserverinternal.GroupName
	})
	for i, p := range providers {
		if core, ok := p.(*corerest.GenericConfig); ok {
			providers[i] = coreProvider{core}
		}
	}
	return append(providers, discoveryrest.StorageProvider{}), nil
}
