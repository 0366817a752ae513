package join

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/listwatch"
)

func gadgets(annotations map[string]string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com", Annotations: annotations}}
	crd.Spec.Group, crd.Spec.Names.Plural = "example.com", "gadgets"
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{}}}
	return crd
}

// withGadgets returns a builder of a client whose API has the CRD of gadgets.
func withGadgets(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(gadgets(nil))
}

// TestChangeIsNoticed: the schemas of a definition are dropped from memory. The rest is enough to notice that its spec has
// changed, or that it was put on hold or released.
func TestChangeIsNoticed(t *testing.T) {
	kept := func(annotations map[string]string) *apiextensionsv1.CustomResourceDefinition {
		obj, err := withoutSchemas(gadgets(annotations))
		must(t, err)
		return obj.(*apiextensionsv1.CustomResourceDefinition)
	}
	mended := kept(nil)
	mended.Generation++
	told := 0
	d := &definitions{changed: func(*apiextensionsv1.CustomResourceDefinition) { told++ }}
	if d.compare(kept(nil), mended); told != 1 {
		t.Errorf("a change of the spec is told %d times", told)
	}
	free, held := map[string]string{"large": "text"}, map[string]string{"large": "text", migrationv1alpha1.HoldAnnotation: "true"}
	for _, test := range []struct {
		name     string
		old, new map[string]string
		told     int
	}{
		{"set", free, held, 1},
		{"released", held, free, 1},
		{"still free", free, nil, 0},
		{"still held", held, map[string]string{migrationv1alpha1.HoldAnnotation: "True"}, 0},
	} {
		told := 0
		d := &definitions{changed: func(*apiextensionsv1.CustomResourceDefinition) { told++ }}
		d.compare(kept(test.old), kept(test.new))
		if told != test.told {
			t.Errorf("%s: told %d times, want %d", test.name, told, test.told)
		}
	}
	crd := kept(held)
	if want := (map[string]string{migrationv1alpha1.HoldAnnotation: "true"}); !maps.Equal(crd.Annotations, want) || crd.Spec.Versions[0].Schema != nil {
		t.Errorf("kept are %v and the schema %v", crd.Annotations, crd.Spec.Versions[0].Schema)
	}
}

// TestDefinitionsAreListed: the handlers get the definitions that exist at the start as soon as they are listed. They do
// not wait for the watch, which here sends nothing, not even a bookmark.
func TestDefinitionsAreListed(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	note := func(call string) { mu.Lock(); defer mu.Unlock(); calls = append(calls, call) }
	objects := withGadgets(t).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			note("list")
			return c.List(ctx, list, options...)
		},
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			note("watch")
			return watch.NewFake(), nil
		},
	}).Build()
	d := &definitions{informer: informDefinitions(objects, 0), stores: true}
	must(t, d.informer.SetTransform(withoutSchemas))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go d.run(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), d.informer.HasSynced) {
		t.Fatal("the definitions were not told of")
	}
	if crd := d.get(schema.GroupResource{Group: "example.com", Resource: "gadgets"}); crd == nil || crd.Spec.Versions[0].Schema != nil {
		t.Errorf("got %v", crd)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(calls, " "); !strings.HasPrefix(got, "list") {
		t.Errorf("calls: %s", got)
	}
}

// TestMissedDefinition: a handler that panicked at a definition's event gets the definition again at the next resync.
func TestMissedDefinition(t *testing.T) {
	informer := informDefinitions(withGadgets(t).Build(), time.Second)
	seen := make(chan string, 1)
	if _, err := informer.AddEventHandler(listwatch.Handler("definitions", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { panic("not understood") },
		UpdateFunc: func(_, obj any) {
			select {
			case seen <- obj.(*apiextensionsv1.CustomResourceDefinition).Name:
			default:
			}
		},
	})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go informer.RunWithContext(ctx)
	select {
	case name := <-seen:
		if name != "gadgets.example.com" {
			t.Errorf("told of %s", name)
		}
	case <-ctx.Done():
		t.Error("it was not told of again")
	}
}

// TestNotStored: a custom resource whose CRD this server has not seen yet does not count as stored elsewhere. Of a
// resource that is stored elsewhere, the result of a migration would be believed without proof.
func TestNotStored(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	c := &counting{crds: &definitions{stores: true}, clients: &clients{objects: fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build()}}
	for resource, want := range map[string]bool{"widgets": false, "gadgets": true} {
		err := c.notStored(t.Context(), schema.GroupResource{Group: "example.com", Resource: resource})
		if err == nil || errors.Is(err, trigger.ErrNotStored) != want {
			t.Errorf("%s: error %v; stored elsewhere should be %t", resource, err, want)
		}
	}
}

// TestAsComponent: the filter understands the headers by which this binary's clients tell their component and version.
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

// TestControllersTellThatTheyAre: the clients of a server and those of its controllers tell different components, both
// with the emulated version.
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

// TestForbidden: the clients notice a 403 for a controller, but not one for the server itself.
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
