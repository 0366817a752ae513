package server

import (
	"fmt"
	"net/url"

	"github.com/spf13/pflag"
	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"

	"github.com/concord-dev/concord/server/outbound"
	"github.com/concord-dev/concord/server/pki"
)

// AggregationOptions say how a server reaches APIs that other programs serve, and how it
// knows a server that reaches it in that way.
type AggregationOptions struct {
	// ProxyClientCertFile and ProxyClientKeyFile are what it shows to aggregated API servers.
	// Empty: a certificate of the front proxy's CA in CertDir, which is made there.
	ProxyClientCertFile, ProxyClientKeyFile string
	// RequestHeader says whose word is taken for who a user is: nobody's without a CA.
	RequestHeader genericoptions.RequestHeaderAuthenticationOptions
	// EndpointRouting goes to the endpoints of Services also where they have a cluster IP.
	EndpointRouting bool
	// Outbound says which hosts Services may lead to.
	Outbound outbound.Config
}

func newAggregationOptions() AggregationOptions {
	return AggregationOptions{RequestHeader: genericoptions.RequestHeaderAuthenticationOptions{
		UsernameHeaders:     []string{"X-Remote-User"},
		GroupHeaders:        []string{"X-Remote-Group"},
		ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}}
}

func (o *AggregationOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile, "Certificate that this server shows to aggregated API servers, with --proxy-client-key-file; a change takes effect without a restart. (default <cert-dir>/"+pki.FrontProxyCertName+", signed by "+pki.FrontProxyCACertName+", both made there)")
	fs.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "Key of --proxy-client-cert-file.")
	fs.BoolVar(&o.EndpointRouting, "enable-aggregator-routing", o.EndpointRouting, "Reach aggregated API servers and conversion webhooks at the endpoints of their Services, not at cluster IPs. Services without a cluster IP are reached at their endpoints in any case, and those of type ExternalName by that name.")
	o.RequestHeader.AddFlags(fs)
	o.Outbound.AddFlags(fs)
}

// The resources by which aggregated API servers and conversion webhooks are found.
var (
	services       = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)

// aggregates says whether this server can reach APIs that others serve: it has to serve by
// itself what tells where they are.
func (o *Options) aggregates() bool {
	return o.plan.Served(services) && o.plan.Served(endpointSlices)
}

// servicesOf is how the aggregator finds Services, and how conversion webhooks are found: where
// this server does not serve what tells where they are, in the DNS.
func (o *Options) servicesOf(shared informers.SharedInformerFactory) (aggregated aggregatorapiserver.ServiceResolver, webhooks webhook.ServiceResolver, err error) {
	if !o.aggregates() {
		return nowhere{}, webhook.NewDefaultServiceResolver(), nil
	}
	resolver, err := newServiceResolver(shared, o.Aggregation.EndpointRouting)
	if err != nil {
		return nil, nil, fmt.Errorf("services: %w", err)
	}
	return o.Aggregation.Outbound.Resolver(resolver), o.Aggregation.Outbound.Resolver(resolver), nil
}

// aggregation is how the aggregator reaches other servers.
func (o *Options) aggregation(certs *pki.Certificates, services aggregatorapiserver.ServiceResolver) aggregatorapiserver.ExtraConfig {
	if !o.aggregates() {
		return aggregatorapiserver.ExtraConfig{ServiceResolver: services, DisableRemoteAvailableConditionController: true}
	}
	cert, key := certs.FrontProxy.CertFile, certs.FrontProxy.KeyFile
	if o.Aggregation.ProxyClientCertFile != "" {
		cert, key = o.Aggregation.ProxyClientCertFile, o.Aggregation.ProxyClientKeyFile
	}
	return aggregatorapiserver.ExtraConfig{
		ServiceResolver: services, ProxyClientCertFile: cert, ProxyClientKeyFile: key,
		ProxyTransport: o.Aggregation.Outbound.Transport(nil),
		// As kube-apiserver by default: an aggregated API server does not send clients elsewhere.
		RejectForwardingRedirects: true,
	}
}

// webhooks is how webhooks are reached.
func (o *Options) webhooks(loopback *rest.Config) webhook.AuthenticationInfoResolverWrapper {
	return webhook.NewDefaultAuthenticationInfoResolverWrapper(o.Aggregation.Outbound.Transport(nil), nil, loopback, noopoteltrace.NewTracerProvider())
}

// serviceResolver finds Services as kube-apiserver does, and those that have no cluster IP
// at their endpoints: here nobody gives them one.
type serviceResolver struct {
	services             corelisters.ServiceLister
	byCluster, byRouting aggregatorapiserver.ServiceResolver
	routing              bool
}

func newServiceResolver(shared informers.SharedInformerFactory, routing bool) (*serviceResolver, error) {
	lister := shared.Core().V1().Services().Lister()
	endpoints, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return &serviceResolver{
		services: lister, routing: routing,
		byCluster: aggregatorapiserver.NewClusterIPServiceResolver(lister),
		byRouting: aggregatorapiserver.NewEndpointServiceResolver(lister, endpoints),
	}, nil
}

// ResolveEndpoint implements aggregatorapiserver.ServiceResolver.
func (r *serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if atEndpoints(&service.Spec, r.routing) {
		return r.byRouting.ResolveEndpoint(namespace, name, port)
	}
	return r.byCluster.ResolveEndpoint(namespace, name, port)
}

// atEndpoints says whether a Service is to be reached at its endpoints.
func atEndpoints(spec *corev1.ServiceSpec, routing bool) bool {
	if spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	return routing || spec.ClusterIP == "" || spec.ClusterIP == corev1.ClusterIPNone
}

// nowhere resolves no Service.
type nowhere struct{}

// ResolveEndpoint implements aggregatorapiserver.ServiceResolver.
func (nowhere) ResolveEndpoint(namespace, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("service %s/%s cannot be found: this server serves no %s or %s (--runtime-config)", namespace, name, services.Resource, endpointSlices.Resource)
}
