package generic

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	api "k8s.io/kubernetes/pkg/apis/core"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	servicestore "k8s.io/kubernetes/pkg/registry/core/service/storage"
)

// errNoNetwork answers requests for an address or a port of a Service.
var errNoNetwork = errors.New("this control plane has no service network: use type ExternalName, or clusterIP None with EndpointSlices")

// coreProvider serves the resources of upstream's generic control plane, and Services, which say where webhooks and
// aggregated APIs are. Services that need an address are refused.
type coreProvider struct{ *corerest.GenericConfig }

// NewRESTStorage implements RESTStorageProvider.
func (p coreProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.GenericConfig.NewRESTStorage(enabled, options)
	if err != nil || !enabled.ResourceEnabled(corev1.SchemeGroupVersion.WithResource("services")) {
		return info, err
	}
	none := map[api.IPFamily]ipallocator.Interface{api.IPv4Protocol: noAddresses{api.IPv4Protocol}, api.IPv6Protocol: noAddresses{api.IPv6Protocol}}
	services, status, _, err := servicestore.NewREST(options, api.IPv4Protocol, none, noPorts{}, nil, nil, nil)
	if err != nil {
		return info, err
	}
	storage := info.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version]
	storage["services"], storage["services/status"] = services, status
	return info, nil
}

// noAddresses is a service network without addresses.
type noAddresses struct{ family api.IPFamily }

var _ ipallocator.Interface = noAddresses{}

// Allocate implements ipallocator.Interface, as all below do.
func (noAddresses) Allocate(net.IP) error           { return errNoNetwork }
func (noAddresses) AllocateNext() (net.IP, error)   { return nil, errNoNetwork }
func (noAddresses) Release(net.IP) error            { return nil }
func (noAddresses) ForEach(func(net.IP))            {}
func (noAddresses) CIDR() net.IPNet                 { return net.IPNet{} }
func (a noAddresses) IPFamily() api.IPFamily        { return a.family }
func (noAddresses) Has(net.IP) bool                 { return false }
func (noAddresses) Destroy()                        {}
func (noAddresses) EnableMetrics()                  {}
func (a noAddresses) DryRun() ipallocator.Interface { return a }

// noPorts is a range without ports.
type noPorts struct{}

// Allocate implements portallocator.Interface, as all below do.
func (noPorts) Allocate(int) error         { return errNoNetwork }
func (noPorts) AllocateNext() (int, error) { return 0, errNoNetwork }
func (noPorts) Release(int) error          { return nil }
func (noPorts) ForEach(func(int))          {}
func (noPorts) Has(int) bool               { return false }
func (noPorts) Destroy()                   {}
func (noPorts) EnableMetrics()             {}

// serviceResolver finds Services as kube-apiserver does. Services without an address are reached at their endpoints,
// because nothing assigns addresses here.
type serviceResolver struct {
	services            corelisters.ServiceLister
	byName, byEndpoints aggregatorapiserver.ServiceResolver
	routing             bool
}

func newServiceResolver(shared informers.SharedInformerFactory, routing bool) (*serviceResolver, error) {
	services := shared.Core().V1().Services().Lister()
	endpoints, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return &serviceResolver{
		services: services, routing: routing,
		byName:      aggregatorapiserver.NewClusterIPServiceResolver(services),
		byEndpoints: aggregatorapiserver.NewEndpointServiceResolver(services, endpoints),
	}, nil
}

// ResolveEndpoint implements aggregatorapiserver.ServiceResolver.
func (r *serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || !r.routing && service.Spec.ClusterIP != "" && service.Spec.ClusterIP != corev1.ClusterIPNone {
		return r.byName.ResolveEndpoint(namespace, name, port)
	}
	return r.byEndpoints.ResolveEndpoint(namespace, name, port)
}

// newEgressSelector returns the egress selector of a server whose connections to Services are made by dial, unless the egress
// selector configuration in file sends them through a proxy: a selector that Kubernetes makes from the file dials any
// address by itself. configured is that one, nil if there is no file; then nil is returned.
func newEgressSelector(file string, configured *egressselector.EgressSelector, dial utilnet.DialFunc) (*egressselector.EgressSelector, error) {
	if configured == nil {
		return nil, nil
	}
	read, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, err
	}
	dials := map[egressselector.EgressType]utilnet.DialFunc{}
	for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Etcd, egressselector.Cluster} {
		if dials[to], err = configured.Lookup(to.AsNetworkContext()); err != nil {
			return nil, err
		}
	}
	proxied := slices.ContainsFunc(read.EgressSelections, func(s apiserver.EgressSelection) bool {
		return strings.EqualFold(s.Name, egressselector.Cluster.String()) && s.Connection.ProxyProtocol != apiserver.ProtocolDirect
	})
	if !proxied {
		dials[egressselector.Cluster] = dial
	}
	return egressselector.NewEgressSelectorWithMap(dials), nil
}
