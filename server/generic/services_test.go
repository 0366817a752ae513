package generic_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/server/generic"
)

// TestServiceResolver: where Services are reached, without --enable-aggregator-routing and with it (docs/aggregation.md).
func TestServiceResolver(t *testing.T) {
	const ip, endpoint = "10.0.0.1:443", "10.0.0.2:8443"
	for name, c := range map[string]struct {
		spec            corev1.ServiceSpec
		endpoints       bool
		usually, routed string // empty: nowhere
	}{
		"external name":              {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}, true, "example.com:443", "example.com:443"},
		"cluster IP":                 {corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, true, ip, endpoint},
		"cluster IP, no endpoints":   {corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, false, ip, ""},
		"headless":                   {corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}, true, endpoint, endpoint},
		"headless, no endpoints":     {corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}, false, "", ""},
		"cluster IP never allocated": {corev1.ServiceSpec{}, true, endpoint, endpoint},
	} {
		if c.spec.Type == "" {
			c.spec.Type = corev1.ServiceTypeClusterIP
		}
		c.spec.Ports = []corev1.ServicePort{{Name: "https", Port: 443}}
		for routing, want := range map[bool]string{false: c.usually, true: c.routed} {
			known := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
			resolver, err := generic.NewServiceResolver(known, routing)
			mustDo(t, err)
			mustDo(t, known.Core().V1().Services().Informer().GetStore().Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}, Spec: c.spec}))
			if c.endpoints {
				mustDo(t, known.Discovery().V1().EndpointSlices().Informer().GetStore().Add(&discoveryv1.EndpointSlice{
					ObjectMeta:  metav1.ObjectMeta{Namespace: "n", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
					AddressType: discoveryv1.AddressTypeIPv4,
					Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
					Endpoints: []discoveryv1.Endpoint{
						{Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
						{Addresses: []string{"10.0.0.2"}},
					},
				}))
			}
			got, err := resolver.ResolveEndpoint("n", "s", 443)
			if want == "" && err == nil || want != "" && (err != nil || got.Scheme != "https" || got.Host != want) {
				t.Errorf("%s, with routing %t: %v, %v, want %q", name, routing, got, err, want)
			}
		}
	}
}
