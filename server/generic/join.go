package generic

import (
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// Configs are the configurations of the servers of the chain, from the first to the last
// one that a request meets.
type Configs struct {
	Aggregator    *aggregatorapiserver.Config
	ControlPlane  *controlplaneapiserver.Config
	APIExtensions *apiextensionsapiserver.Config
}

// Joiner puts what a protocol needs into the servers. Its methods are called in this order,
// once each, for one server.
type Joiner interface {
	// Configure changes the configurations before they are completed: whatever is stored
	// passes their RESTOptionsGetters and CRDRESTOptionsGetter, and every request passes the
	// Aggregator's BuildHandlerChainFunc, the only one that runs.
	Configure(*Configs) error
	// StorageVersions serves internal.apiserver.k8s.io in place of upstream's registry; nil
	// serves none.
	StorageVersions() controlplaneapiserver.RESTStorageProvider
	// Hook adds hooks and checks to the chain's last server, before it is prepared.
	Hook(*genericapiserver.GenericAPIServer) error
}
