package server

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/server/pki"
)

// TestServiceResolver asserts where Services are reached, and that one that leads nowhere
// is an error and not this host.
func TestServiceResolver(t *testing.T) {
	service := func(change func(*corev1.ServiceSpec)) corev1.ServiceSpec {
		spec := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 443}}}
		change(&spec)
		return spec
	}
	withIP := service(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.0.0.7" })
	without := service(func(*corev1.ServiceSpec) {})
	headless := service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	external := service(func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "api.example.com"
	})
	for _, tc := range []struct {
		name      string
		spec      corev1.ServiceSpec
		endpoints bool
		routing   bool
		want      string
	}{
		{"an external name", external, false, false, "api.example.com:443"},
		{"an external name, with routing", external, false, true, "api.example.com:443"},
		{"a cluster IP", withIP, true, false, "10.0.0.7:443"},
		{"a cluster IP, with routing", withIP, true, true, "10.1.0.1:8443"},
		{"no cluster IP", without, true, false, "10.1.0.1:8443"},
		{"a headless service", headless, true, false, "10.1.0.1:8443"},
		{"neither a cluster IP nor endpoints", without, false, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
			if err != nil {
				t.Fatal(err)
			}
			shared := informers.NewSharedInformerFactory(client, time.Hour) // which is never started
			resolver, err := newServiceResolver(shared, tc.routing)
			if err != nil {
				t.Fatal(err)
			}
			meta := metav1.ObjectMeta{Namespace: "apis", Name: "extension"}
			if err := shared.Core().V1().Services().Informer().GetIndexer().Add(&corev1.Service{ObjectMeta: meta, Spec: tc.spec}); err != nil {
				t.Fatal(err)
			}
			if tc.endpoints {
				meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
				slice := &discoveryv1.EndpointSlice{
					ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
					Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
					Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8443)}},
				}
				if err := shared.Discovery().V1().EndpointSlices().Informer().GetIndexer().Add(slice); err != nil {
					t.Fatal(err)
				}
			}
			got, err := resolver.ResolveEndpoint("apis", "extension", 443)
			switch {
			case tc.want == "" && err == nil:
				t.Errorf("it is reached at %s", got)
			case tc.want != "" && (err != nil || got.Host != tc.want || got.Scheme != "https"):
				t.Errorf("it is reached at %v, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// TestProxyTrust asserts that what servers with different front proxies publish holds for
// all of them, and is written once.
func TestProxyTrust(t *testing.T) {
	read := func(p proxyTrust) publishedProxy {
		t.Helper()
		published, err := p.read()
		if err != nil {
			t.Fatal(err)
		}
		return published
	}
	own := func() pki.FrontProxy {
		t.Helper()
		certs, err := pki.Ensure(pki.Config{Dir: t.TempDir(), Port: 6443})
		if err != nil {
			t.Fatal(err)
		}
		return certs.FrontProxy
	}
	one, two := own(), own()
	options := newAggregationOptions()
	published := &corev1.ConfigMap{Data: map[string]string{trustKey: "kept"}}
	data := published.Data
	if !read(options.trust(one)).addTo(published) || data[proxyNamesKey] != `["front-proxy-client"]` || data[proxyUserKey] != `["X-Remote-User"]` || data[trustKey] != "kept" {
		t.Fatalf("published is %v", data)
	}
	before := maps.Clone(data)
	if read(options.trust(one)).addTo(published) || !maps.Equal(before, data) {
		t.Errorf("a second time %v is made of %v", data, before)
	}

	options.ProxyClientCertFile = two.CertFile
	options.RequestHeader.ClientCAFile, options.RequestHeader.AllowedNames = two.CAFile, []string{"aggregator"}
	if !read(options.trust(one)).addTo(published) || data[proxyNamesKey] != `["front-proxy-client","aggregator"]` {
		t.Errorf("names are %s", data[proxyNamesKey])
	}
	for _, file := range []string{one.CAFile, two.CAFile} {
		ca, err := os.ReadFile(file)
		if err != nil || !strings.Contains(data[proxyCAKey], strings.TrimSpace(string(ca))) {
			t.Errorf("%s is not in the published bundle: %v", file, err)
		}
	}

	options.RequestHeader.ClientCAFile = ""
	if before := maps.Clone(data); read(options.trust(one)).addTo(published) || !maps.Equal(before, data) {
		t.Error("a server that does not know who vouches for its certificate publishes something")
	}
	options.ProxyClientCertFile = ""
	empty := &corev1.ConfigMap{} // as kubectl create configmap makes it
	if !read(options.trust(one)).addTo(empty) || empty.Data[proxyCAKey] == "" || empty.Data[proxyGroupKey] != `["X-Remote-Group"]` {
		t.Errorf("of an empty ConfigMap %v is made", empty.Data)
	}
	if _, err := (proxyTrust{caFile: filepath.Join(t.TempDir(), "none")}).read(); err == nil {
		t.Error("a CA file that is not there is no error")
	}
}
