package replicas

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/net/http2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stock/observed"
)

var (
	now     = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lease returns the identity Lease of a kube-apiserver.
func lease(name, address string, renewed time.Duration) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: storageversion.IdentityNamespace, Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(name + "_1"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-renewed))),
		},
	}
	if address != "" {
		l.Annotations = map[string]string{corev1.AnnotationPeerAdvertiseAddress: address}
	}
	return l
}

func endpoints(addresses ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Ports:      []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}},
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return slice
}

// unready makes the last endpoint of a slice not ready.
func unready(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice.Endpoints[len(slice.Endpoints)-1].Conditions.Ready = ptr.To(false)
	return slice
}

func TestFind(t *testing.T) {
	for _, tc := range []struct {
		name     string
		leases   []*coordinationv1.Lease
		slice    *discoveryv1.EndpointSlice
		override map[string]string
		want     []string
	}{
		{"Leases tell", []*coordinationv1.Lease{lease("b", "10.0.0.2:6443", time.Minute), lease("a", "10.0.0.1:6443", time.Minute)}, endpoints(), nil, []string{"a=10.0.0.1:6443", "b=10.0.0.2:6443"}},
		{"one has run out", []*coordinationv1.Lease{lease("a", "10.0.0.1:6443", 0), lease("b", "10.0.0.2:6443", 2*time.Hour)}, endpoints(), nil, []string{"a=10.0.0.1:6443"}},
		{"endpoints tell", []*coordinationv1.Lease{lease("a", "", 0), lease("b", "", 0)}, endpoints("10.0.0.2", "10.0.0.1"), nil, []string{"a=10.0.0.1:6443", "b=10.0.0.2:6443"}},
		{"endpoints tell what one Lease does not", []*coordinationv1.Lease{lease("a", "", 0), lease("b", "10.0.0.1:6443", 0)}, endpoints("10.0.0.2", "10.0.0.1"), nil, []string{"a=10.0.0.2:6443", "b=10.0.0.1:6443"}},
		{"there are fewer endpoints", []*coordinationv1.Lease{lease("a", "", 0), lease("b", "", 0)}, endpoints("10.0.0.1"), nil, []string{"a=", "b="}},
		{"there are more", []*coordinationv1.Lease{lease("a", "", 0)}, endpoints("10.0.0.1", "10.0.0.2"), nil, []string{"a=", string(observed.Unleased) + "="}},
		{"one has no Lease", []*coordinationv1.Lease{lease("a", "10.0.0.1:6443", 0)}, endpoints("10.0.0.1", "10.0.0.2"), nil, []string{"a=10.0.0.1:6443", string(observed.Unleased) + "="}},
		{"one of two is not ready", []*coordinationv1.Lease{lease("a", "10.0.0.1:6443", 0)}, unready(endpoints("10.0.0.1", "10.0.0.2")), nil, []string{"a=10.0.0.1:6443"}},
		{"all tell the same", []*coordinationv1.Lease{lease("a", "10.0.0.9:6443", 0), lease("b", "10.0.0.9:6443", time.Minute)}, endpoints(), nil, []string{"a=", "b="}},
		{"flags tell", []*coordinationv1.Lease{lease("a", "10.0.0.1:6443", 0), lease("b", "", 0)}, endpoints(), map[string]string{"a": "127.0.0.1:1", "": "127.0.0.1:2"}, []string{"a=127.0.0.1:1", "b=127.0.0.1:2"}},
	} {
		kube := fake.NewClientset(tc.slice)
		for _, l := range tc.leases {
			must(t, kube.Tracker().Add(l))
		}
		a := New(Config{Kube: kube, Override: tc.override, Clock: testclock.NewFakeClock(now)})
		found, err := a.Find(t.Context())
		var got []string
		for _, r := range found.Replicas {
			got = append(got, fmt.Sprintf("%s=%s", r.Lease, r.Address))
			if r.Lease != observed.Unleased && r.Holder != string(r.Lease)+"_1" {
				t.Errorf("%s: the holder of %s is %q", tc.name, r.Lease, r.Holder)
			}
		}
		if err != nil || !slices.Equal(got, tc.want) || len(found.Concord) > 0 {
			t.Errorf("%s: %v, %v; want %v", tc.name, got, err, tc.want)
		}
		if tc.name != "all tell the same" {
			continue
		}
		if why := a.Ask(t.Context(), found.Replicas[0], nil, nil).Failed; !strings.Contains(why, "with b,") {
			t.Errorf("%s: it is not asked since it %q", tc.name, why)
		}
	}
}

// TestFindForbidden: endpoints are not counted if they may not be read; the missing permission is logged once.
func TestFindForbidden(t *testing.T) {
	for address, fails := range map[string]bool{"10.0.0.1:6443": false, "": true} {
		kube := fake.NewClientset(lease("a", address, 0), lease("gone", "", 2*time.Hour), endpoints("10.0.0.1", "10.0.0.2"))
		kube.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "", errors.New("no right"))
		})
		var told []string
		a := New(Config{Kube: kube, Clock: testclock.NewFakeClock(now), Logger: funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})})
		for range 2 {
			found, err := a.Find(t.Context())
			if (err != nil) != fails || !fails && len(found.Replicas) != 1 {
				t.Errorf("address %q: %+v, %v", address, found, err)
			}
		}
		if !fails && (len(told) != 1 || !strings.Contains(told[0], "endpointslices is forbidden: no right")) {
			t.Errorf("address %q: it tells %q", address, told)
		}
	}
}

// TestFindEnding: a kube-apiserver that deletes its Lease when it begins to end is still asked, and counts, until
// it cannot be there any more.
func TestFindEnding(t *testing.T) {
	answers := true
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"major":"1","minor":"37"}`))
	}))
	defer server.Close()
	kube := fake.NewClientset(lease("a", strings.TrimPrefix(server.URL, "https://"), 0))
	clock := testclock.NewFakeClock(now)
	a := New(Config{Kube: kube, Clock: clock, Rest: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, Timeout: time.Minute})
	is := func(when string, want int) {
		t.Helper()
		found, err := a.Find(t.Context())
		if err != nil || len(found.Replicas) != want {
			t.Fatalf("%s: %+v, %v", when, found.Replicas, err)
		}
		for _, r := range found.Replicas {
			if got := a.Ask(t.Context(), r, nil, nil); (got.Failed == "") != answers {
				t.Errorf("%s: it answers %+v", when, got)
			}
		}
	}
	is("it has a Lease", 1)
	must(t, kube.CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	is("it ends", 1)
	is("it ends still", 1)
	server.Close()
	answers = false
	is("its port is closed", 1)
	is("it may finish its requests still", 1)
	clock.Step(observed.Drains)
	is("nobody is there", 1)
	is("that is known", 0)
}

// TestFindEndingTogether: kube-apiservers that end, and cannot be asked one by one, are forgotten in the end.
func TestFindEndingTogether(t *testing.T) {
	kube, clock := fake.NewClientset(lease("a", "10.0.0.9:6443", 0), lease("b", "10.0.0.9:6443", 0)), testclock.NewFakeClock(now)
	a := New(Config{Kube: kube, Clock: clock})
	is := func(want int) {
		t.Helper()
		found, err := a.Find(t.Context())
		if err != nil || len(found.Replicas) != want {
			t.Fatalf("%+v, %v, want %d", found.Replicas, err, want)
		}
		for _, r := range found.Replicas {
			if got := a.Ask(t.Context(), r, nil, nil); got.Failed == "" {
				t.Errorf("it answers %+v", got)
			}
		}
	}
	is(2)
	for _, name := range []string{"a", "b"} {
		must(t, kube.CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	is(2)
	clock.Step(observed.Lingers)
	is(2)
	is(0)
}

// TestFindEndingUnreachable: only a refused connection means that a kube-apiserver has ended; one on a host that
// cannot be reached may still run.
func TestFindEndingUnreachable(t *testing.T) {
	for fault, want := range map[error]int{syscall.ECONNREFUSED: 0, syscall.EHOSTUNREACH: 1, syscall.ENETUNREACH: 1} {
		kube := fake.NewClientset(lease("a", "10.0.0.1:6443", 0))
		dial := func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: fault}
		}
		clock := testclock.NewFakeClock(now)
		a := New(Config{Kube: kube, Clock: clock, Rest: &rest.Config{Dial: dial}, Timeout: time.Minute})
		_, err := a.Find(t.Context())
		must(t, err)
		must(t, kube.CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		ending, err := a.Find(t.Context())
		must(t, err)
		a.Ask(t.Context(), ending.Replicas[0], nil, nil)
		clock.Step(observed.Drains)
		a.Ask(t.Context(), ending.Replicas[0], nil, nil)
		left, err := a.Find(t.Context())
		if err != nil || len(left.Replicas) != want {
			t.Errorf("%v: left are %+v, %v", fault, left.Replicas, err)
		}
	}
}

// TestFindConcord: Concord's servers are recognized by their Leases. The Leases that upstream's code keeps in their
// processes do not count as servers, nor do those of aggregated API servers, which may last longer than the servers.
func TestFindConcord(t *testing.T) {
	ours := lease("apiserver-0123456789abcdef", "", 0)
	ours.Annotations = map[string]string{storageversion.EmulationVersionAnnotation: "1.37"}
	aggregated := lease("apiserver-fedcba9876543210", "", 0)
	aggregated.Annotations, aggregated.Labels[storageversion.AggregatedLabel] = ours.Annotations, "store"
	kube := fake.NewClientset(endpoints(), ours, aggregated, lease(storageversion.NewUpstreamIdentity(), "", 0), lease("a", "10.0.0.1:6443", 0))
	found, err := New(Config{Kube: kube, Clock: testclock.NewFakeClock(now)}).Find(t.Context())
	if err != nil || !slices.Equal(found.Concord, []string{ours.Name}) || len(found.Replicas) != 1 {
		t.Errorf("found are %+v, %v", found, err)
	}
}

// TestTogether: if kube-apiservers cannot be asked one by one, one replica stands for all of them. It is another
// one when one of them is restarted.
func TestTogether(t *testing.T) {
	first, second := lease("a", "10.0.0.1:6443", 0), lease("b", "10.0.0.2:6443", 0)
	a := New(Config{Kube: fake.NewClientset(endpoints(), first, second), Together: true, Rest: &rest.Config{Host: "https://cluster.example.com"}, Clock: testclock.NewFakeClock(now)})
	found, err := a.Find(t.Context())
	if want := "a_1,b_1"; err != nil || len(found.Replicas) != 1 || found.Replicas[0].Holder != want {
		t.Errorf("found are %+v, %v; want one held by %s", found, err, want)
	}
	if config := a.at(found.Replicas[0].Address); config.Host != a.Rest.Host || config.ServerName != "" {
		t.Errorf("it is reached at %s as %q", config.Host, config.ServerName)
	}
	single := New(Config{Rest: a.Rest})
	if config := single.at("10.0.0.1:6443"); config.Host != "https://10.0.0.1:6443" || config.ServerName != servedAs {
		t.Errorf("a single one is reached at %s as %q", config.Host, config.ServerName)
	}
}

func TestShow(t *testing.T) {
	shown := map[schema.GroupResource]observed.Shown{}
	for _, v := range []string{"v1", "v1beta1"} {
		show(shown, schema.GroupVersion{Group: "apps", Version: v}, []metav1.APIResource{
			{Name: "deployments", Kind: "Deployment", StorageVersionHash: "hash"},
			{Name: "deployments/status", Kind: "Deployment", StorageVersionHash: "hash"},
			{Name: "reviews", Kind: "Review"},
		})
	}
	got := shown[schema.GroupResource{Group: "apps", Resource: "deployments"}]
	if len(shown) != 1 || got.Hash != "hash" || got.Kind != "Deployment" || !slices.Equal(got.Served, []string{"apps/v1", "apps/v1beta1"}) {
		t.Errorf("shown is %+v", shown)
	}
}

// TestBrief: the reason why a kube-apiserver does not answer has no parts that differ from one time to the next,
// since the StorageState is written for every other text.
func TestBrief(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("get: %w", context.DeadlineExceeded), "timeout"},
		{&url.Error{Op: "Get", URL: "https://10.0.0.1", Err: &net.OpError{Op: "read", Source: &net.TCPAddr{Port: 41234}, Err: syscall.ECONNRESET}}, "connection reset by peer"},
		{&url.Error{Op: "Get", URL: "https://10.0.0.1", Err: io.EOF}, "EOF"},
		{errors.New("x509: certificate signed by unknown authority"), "x509: certificate signed by unknown authority"},
		{&url.Error{Op: "Get", URL: "https://10.0.0.1", Err: http2.StreamError{StreamID: 41235, Code: http2.ErrCodeInternal}}, "stream error: INTERNAL_ERROR"},
		{errors.New(`http2: server sent GOAWAY and closed the connection; LastStreamID=41235, ErrCode=NO_ERROR, debug=""`), `http2: server sent GOAWAY and closed the connection; ErrCode=NO_ERROR, debug=""`},
	} {
		if got := brief(tc.err); got != tc.want {
			t.Errorf("%v is told as %q", tc.err, got)
		}
	}
}

// TestExpiredCertificate: the error about an expired certificate has the current time in it, which is left out.
func TestExpiredCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	at := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: at.Add(-time.Hour), NotAfter: at.Add(time.Hour)}
	trusted, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	must(t, err)
	expired := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{servedAs}, NotBefore: at.Add(-time.Hour), NotAfter: at.Add(-time.Minute)}
	served, err := x509.CreateCertificate(rand.Reader, expired, ca, &key.PublicKey, key)
	must(t, err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{served}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	a := New(Config{Rest: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted})}}, Timeout: time.Minute, Clock: testclock.NewFakeClock(now)})
	address := server.Listener.Addr().String()
	want := fmt.Sprintf("does not answer at %s: its certificate has expired or is not yet valid: it is from %s to %s",
		address, expired.NotBefore.UTC().Format(time.RFC3339), expired.NotAfter.UTC().Format(time.RFC3339))
	if got := a.Ask(t.Context(), observed.Replica{Process: observed.Process{Lease: "a", Holder: "1"}, Address: address}, nil, nil).Failed; got != want {
		t.Errorf("it fails since it %q; want %q", got, want)
	}
}

// slowly is a transport that answers for the discovery of so many versions, each after the time that after returns.
type slowly struct {
	versions int
	after    func(version int) time.Duration
}

// CancelRequest is there since client-go asks for it; the request's context ends the request.
func (slowly) CancelRequest(*http.Request) {}

func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	var reply any = metav1.APIVersions{}
	switch path, took := r.URL.Path, 0; {
	case path == "/version":
		reply = version.Info{Major: "1", Minor: "37"}
	case path == "/apis":
		group := metav1.APIGroup{Name: widgets.Group}
		for i := range s.versions {
			v := fmt.Sprintf("v%d", i)
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: widgets.Group + "/" + v, Version: v})
		}
		reply = metav1.APIGroupList{Groups: []metav1.APIGroup{group}}
	case strings.HasPrefix(path, "/apis/"):
		if _, err := fmt.Sscanf(path, "/apis/example.com/v%d", &took); err != nil {
			return nil, err
		}
		select {
		case <-time.After(s.after(took)):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		reply = metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: widgets.Resource, Kind: "Widget", StorageVersionHash: "hash"}}}
	}
	body, err := json.Marshal(reply)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, err
}

// TestManyVersions: a kube-apiserver with many group/versions may take longer for all of them than the limit of one
// request. If it hangs in the middle, it is not waited for longer than that limit.
func TestManyVersions(t *testing.T) {
	const versions = 1000
	for _, tc := range []struct {
		name   string
		after  func(version int) time.Duration
		within time.Duration
		why    string
	}{
		{"each answer is quick", func(int) time.Duration { return 50 * time.Millisecond }, 15 * time.Second, ""},
		{"one hangs", func(v int) time.Duration {
			if v == 200 {
				return time.Hour
			}
			return 10 * time.Millisecond
		}, 11 * time.Second, "timeout"},
		{"all are slow", func(int) time.Duration { return 9 * time.Second }, 16 * time.Second, "timeout"},
	} {
		synctest.Test(t, func(t *testing.T) {
			config := &rest.Config{QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, WrapTransport: func(http.RoundTripper) http.RoundTripper { return slowly{versions, tc.after} }}
			a := New(Config{Rest: config, Timeout: 10 * time.Second, Clock: clock.RealClock{}})
			began := time.Now()
			answer := a.Ask(t.Context(), observed.Replica{Address: "10.0.0.1:6443"}, nil, nil)
			took := time.Since(began)
			want := ""
			if tc.why != "" {
				want = "does not answer at 10.0.0.1:6443 for all of its 1000 group/versions: " + tc.why
			}
			if answer.Failed != want || want == "" && len(answer.Shown[widgets].Served) != versions || took > tc.within {
				t.Errorf("%s: after %v it fails since it %q, and shows %d", tc.name, took, answer.Failed, len(answer.Shown[widgets].Served))
			}
		})
	}
}
