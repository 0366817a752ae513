package generic_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/server/generic"
	"github.com/concord-dev/concord/server/outbound"
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

// TestEgressSelector: an egress selector that sends connections to Services through no proxy does not let them lead to the
// server's host, and one that does leaves that to the proxy.
func TestEgressSelector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for selections, refused := range map[string]bool{
		"[{name: etcd, connection: {proxyProtocol: Direct}}]":                                                           true,
		"[{name: cluster, connection: {proxyProtocol: Direct}}]":                                                        true,
		"[{name: Cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /nowhere/socket}}}}]":     false,
		"[{name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /nowhere/other}}}}]": true,
	} {
		file := filepath.Join(t.TempDir(), "egress.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: "+selections), 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := egressselector.ReadEgressSelectorConfiguration(file)
		if err != nil {
			t.Fatal(err)
		}
		upstream, err := egressselector.NewEgressSelector(read)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []outbound.Config{{}, {AllowLoopback: true}} {
			selector, err := generic.NewEgressSelector(file, upstream, c.Dial())
			if err != nil {
				t.Fatal(err)
			}
			dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := dial(t.Context(), "tcp", listener.Addr().String())
			if err == nil {
				_ = conn.Close()
			}
			if errors.Is(err, outbound.ErrOwnHost) != (refused && !c.AllowLoopback) || (err == nil) != (refused && c.AllowLoopback) {
				t.Errorf("%s, allowed %t: %v", selections, c.AllowLoopback, err)
			}
			if other, err := selector.Lookup(egressselector.ControlPlane.AsNetworkContext()); err != nil || (other == nil) == strings.Contains(selections, "controlplane") {
				t.Errorf("%s: to the control plane by %p: %v", selections, other, err)
			}
		}
	}
	if none, err := generic.NewEgressSelector("", nil, nil); none != nil || err != nil {
		t.Errorf("without a file: %v, %v", none, err)
	}
}
