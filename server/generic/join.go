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

// Chain are the servers themselves, built and not yet prepared to run.
type Chain struct {
	Aggregator    *aggregatorapiserver.APIAggregator
	ControlPlane  *controlplaneapiserver.Server
	APIExtensions *apiextensionsapiserver.CustomResourceDefinitions
}

// Last is the server whose handlers and hooks run.
func (c *Chain) Last() *genericapiserver.GenericAPIServer { return c.Aggregator.GenericAPIServer }

// Joiner puts what a protocol needs into the servers. Its methods are called in this order,
// once each, for one server.
type Joiner interface {
	// Configure changes the configurations before they are completed: whatever is stored
	// passes their RESTOptionsGetters and CRDRESTOptionsGetter, and every request passes the
	// Aggregator's BuildHandlerChainFunc, the only one that runs.
	Configure(*Configs) error
	// Start adds APIs, hooks and checks to the last server. Nobody else serves
	// internal.apiserver.k8s.io there.
	Start(*Chain) error
}
