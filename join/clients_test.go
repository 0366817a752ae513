package join

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join/roles"
)

// TestAsComponent: the headers that this binary's clients send are those that the filter reads.
func TestAsComponent(t *testing.T) {
	var header http.Header
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { header = r.Header.Clone() }))
	defer backend.Close()
	config := &rest.Config{Host: backend.URL}
	for _, component := range []compat.Component{compat.ConcordServer, compat.ConcordControllers, compat.ConcordCommand} {
		told := AsComponent(config, component, version.MustParse("1.36"))
		if config.UserAgent != "" || config.WrapTransport != nil {
			t.Fatal("the caller's config is changed")
		}
		client, err := rest.UnversionedRESTClientFor(withCodec(told))
		must(t, err)
		must(t, client.Get().AbsPath("/version").Do(t.Context()).Error())
		id := compat.Identify(header.Get("X-Concord-Component-Version"), header.Get("User-Agent"))
		if id.Component != component || id.Version.String() != "1.36" {
			t.Errorf("%s is taken for %+v: %v", component, id, header)
		}
		id = compat.ParseUserAgent(header.Get("User-Agent"))
		if id.Component != component || id.Version.String() != compat.Binary {
			t.Errorf("the User-Agent of %s is taken for %+v: %v", component, id, header)
		}
	}
}

// TestControllersTellThatTheyAre: a server's clients and its controllers' are told apart,
// and both stand for the emulated release.
func TestControllersTellThatTheyAre(t *testing.T) {
	var header http.Header
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		w.WriteHeader(http.StatusNotFound)
	}))
	defer backend.Close()
	emulation := version.MustParse("1.35")
	all, err := newClients(Config{Loopback: &rest.Config{Host: backend.URL}, Emulation: emulation, RBAC: true})
	must(t, err)
	trigger, err := all.as(roles.Trigger)
	must(t, err)
	for name, c := range map[string]struct {
		component compat.Component
		user      string
		objects   client.Client
	}{
		"server":     {compat.ConcordServer, "", all.objects},
		"controller": {compat.ConcordControllers, "system:serviceaccount:kube-system:concord-trigger", trigger.objects},
	} {
		if err := c.objects.Get(t.Context(), client.ObjectKey{Name: "a"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		told := header.Get(compat.ComponentVersionHeader)
		if id := compat.Identify(told, header.Get("User-Agent")); id.Component != c.component || !id.Version.EqualTo(emulation) {
			t.Errorf("the client of the %s tells %q, which is %+v", name, told, id)
		}
		if id := compat.ParseUserAgent(header.Get("User-Agent")); id.Component != c.component {
			t.Errorf("the client of the %s has User-Agent %q", name, header.Get("User-Agent"))
		}
		if user := header.Get("Impersonate-User"); user != c.user {
			t.Errorf("the client of the %s acts as %q", name, user)
		}
	}
}

// TestForbidden: it is seen when a controller is refused something, and not when the server itself is.
func TestForbidden(t *testing.T) {
	status := http.StatusNotFound
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer backend.Close()
	all, err := newClients(Config{Loopback: &rest.Config{Host: backend.URL}, Emulation: version.MustParse("1.35"), RBAC: true})
	must(t, err)
	trigger, err := all.as(roles.Trigger)
	must(t, err)
	for _, test := range []struct {
		asks   client.Client
		status int
		want   bool
	}{{trigger.objects, http.StatusNotFound, false}, {all.objects, http.StatusForbidden, false}, {trigger.objects, http.StatusForbidden, true}} {
		status = test.status
		if err := test.asks.List(t.Context(), &corev1.EventList{}); err == nil || all.forbidden.Swap(false) != test.want {
			t.Errorf("after a %d, %v: it is not %t that something is forbidden", status, err, test.want)
		}
	}
}

func withCodec(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentConfig = rest.ContentConfig{NegotiatedSerializer: scheme.Codecs}
	return config
}
