package join

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/member/hosting"
)

func TestValidate(t *testing.T) {
	valid := func() Config {
		v := version.MustParse("1.2")
		c := Config{Host: &rest.Config{}, Address: "127.0.0.1:1", Schemes: []*runtime.Scheme{registry.LeaseScheme}, Binary: v, Emulation: v, MinCompatibility: v}
		c.Etcd.Transport.ServerList = []string{"http://127.0.0.1:2379"}
		return c
	}
	for _, test := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"an aggregated server", func(*Config) {}, ""},
		{"a cluster's own", func(c *Config) { c.Host, c.Loopback = nil, &rest.Config{} }, ""},
		{"neither", func(c *Config) { c.Host = nil }, "Config.Loopback is missing, and Config.Host"},
		{"a silent aggregated server", func(c *Config) { c.Silent = true }, "Config.Silent"},
		{"no versions", func(c *Config) { c.Emulation = nil }, "Config.Binary, Emulation or MinCompatibility"},
		{"another etcd for one resource", func(c *Config) { c.EtcdServersOverrides = []string{"/things#http://127.0.0.1:1"} }, "cannot be fenced"},
		{"no etcd", func(c *Config) { c.Etcd = storagebackend.Config{} }, "names no etcd"},
		{"no address", func(c *Config) { c.Address = "" }, "Config.Address is missing"},
		{"no schemes", func(c *Config) { c.Schemes = nil }, "Config.Schemes is empty"},
		{"watch cache without a size", func(c *Config) { c.WatchCacheSizes = []string{"things"} }, "--watch-cache-sizes: "},
		{"controller lease of 1.5 s", func(c *Config) { c.ControllerLeaseDuration = 1500 * time.Millisecond }, "--controller-lease-duration 1.5s is not allowed"},
		{"controller lease of -1 s", func(c *Config) { c.ControllerLeaseDuration = -time.Second }, "--controller-lease-duration -1s is not allowed"},
		{"identity lease of 1.5 s", func(c *Config) { c.IdentityLeaseDuration = 1500 * time.Millisecond }, "--identity-lease-duration 1.5s is not allowed"},
		{"identity lease of -1 s", func(c *Config) { c.IdentityLeaseDuration = -time.Second }, "--identity-lease-duration -1s is not allowed"},
		{"renewals after half of the lease", func(c *Config) { c.IdentityLeaseRenewInterval = 8 * time.Second }, "--identity-lease-renew-interval 8s must be above 0 and at most half"},
		{"renewal interval of -1 s", func(c *Config) { c.IdentityLeaseRenewInterval = -time.Second }, "--identity-lease-renew-interval -1s must be above 0 and at most half"},
		{"reload interval of -1 s", func(c *Config) { c.KeyringInterval = -time.Second }, "--encryption-provider-config-reload-interval -1s must be above 0"},
		{"added latency of -1 s", func(c *Config) { c.MigrationMaxAddedLatency = ptr.To(-time.Second) }, "--migration-max-added-latency -1s must not be negative"},
		{"added latency of 0", func(c *Config) { c.MigrationMaxAddedLatency = ptr.To(time.Duration(0)) }, ""},
		{"-5 objects per second", func(c *Config) { c.MigrationMaxObjectsPerSecond = -5 }, "--migration-max-objects-per-second -5 must not be negative"},
		{"settle time of -1 s", func(c *Config) { c.MigrationSettle = -time.Second }, "--migration-settle -1s must be above 0"},
	} {
		c := valid()
		test.edit(&c)
		err := c.Validate()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestAggregatedOverrides: --etcd-servers-overrides, which RecommendedOptions accept and ignore, get into Join's
// Config.
func TestAggregatedOverrides(t *testing.T) {
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/own", nil))
	etcd.EtcdServersOverrides = []string{"/things#http://127.0.0.1:1"}
	config := Config{}.Aggregated(genericapiserver.NewRecommendedConfig(serializer.NewCodecFactory(registry.LeaseScheme)), etcd)
	if len(config.EtcdServersOverrides) != 1 {
		t.Errorf("the overrides are lost: %v", config.EtcdServersOverrides)
	}
}

// TestAddFlags: the help shows the defaults that apply, whether the program's Config begins with Defaults or is empty.
func TestAddFlags(t *testing.T) {
	for _, test := range []struct {
		name  string
		from  Config
		renew string // the default of --identity-lease-renew-interval in the help
		flags []string
		want  time.Duration // between renewals
	}{
		{"from nothing", Config{}, "0s", nil, 5 * time.Second},
		{"from nothing, a short lease", Config{}, "0s", []string{"--identity-lease-duration=6s"}, 2 * time.Second},
		{"from the defaults", Defaults(), "0s", nil, 5 * time.Second},
		{"from the defaults, a short lease", Defaults(), "0s", []string{"--identity-lease-duration=6s"}, 2 * time.Second},
		{"of its own", Config{IdentityLeaseRenewInterval: time.Second}, "1s", nil, time.Second},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		test.from.AddFlags(fs)
		for flag, want := range map[string]string{"identity-lease-duration": "15s", "controller-lease-duration": "6s", "identity-lease-renew-interval": test.renew} {
			if got := fs.Lookup(flag).DefValue; got != want {
				t.Errorf("%s: --%s is %s by default, want %s", test.name, flag, got, want)
			}
		}
		must(t, fs.Parse(test.flags))
		if got := test.from.withDefaults(); got.IdentityLeaseRenewInterval != test.want || got.ValidateFlags() != nil {
			t.Errorf("%s: renewals every %v, want %v; %v", test.name, got.IdentityLeaseRenewInterval, test.want, got.ValidateFlags())
		}
	}
}

func TestCustomResourcesAreTheHosts(t *testing.T) {
	j := &Join{hosting: &hosting.Host{}, crds: &definitions{stores: true}}
	if err := j.Start(nil); err == nil || !strings.Contains(err.Error(), "custom resources") {
		t.Errorf("an aggregated server with custom resources starts: %v", err)
	}
}

// TestOwnRefused: if a policy refuses the own definitions, the log says so, once, and not as long as a server may still be
// starting.
func TestOwnRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		began := time.Now()
		logger := funcr.New(func(_, line string) {
			if time.Since(began) < ownLate {
				t.Errorf("it is said after %v: %s", time.Since(began), line)
			}
			said = append(said, line)
		}, funcr.Options{})
		objects := withGadgets(t).WithInterceptorFuncs(interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "x", errors.New("a policy wants an owner"))
		}}).Build()
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), time.Minute)
		defer cancel()
		if err := (&bootstrap{clients: &clients{objects: objects}}).ensureOwn(ctx); err == nil || len(said) != 1 || !strings.Contains(said[0], "a policy wants an owner") {
			t.Errorf("%v, said is %q", err, said)
		}
	})
}

// TestViewRefused: if the ClusterRole for people cannot be made, everything else is made all the same, and the role is
// tried again after a while.
func TestViewRefused(t *testing.T) {
	kube := fake.NewClientset()
	tries, refuse := 0, true
	kube.PrependReactor("create", "clusterroles", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if role, is := create.GetObject().(*rbacv1.ClusterRole); !ok || !is || role.Name != roles.View.Name {
			return false, nil, nil
		}
		if tries++; refuse {
			return true, nil, errors.New("a webhook refuses it")
		}
		return false, nil, nil
	})
	b := &bootstrap{config: Config{RBAC: true}, clients: &clients{kube: kube, objects: withGadgets(t).Build()}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.ensureOwn(ctx); err != nil || tries > 0 {
		t.Fatalf("the controllers wait for the role that people read by: %v, after %d tries", err, tries)
	}
	var said string
	b.keepView(t.Context(), &said)
	if tries != 1 || !strings.Contains(said, "a webhook refuses it") {
		t.Errorf("after %d tries it has said %q", tries, said)
	}
	refuse = false
	b.keepView(t.Context(), &said)
	if _, err := kube.RbacV1().ClusterRoles().Get(t.Context(), roles.View.Name, metav1.GetOptions{}); err != nil || said != "" {
		t.Errorf("when it is let: %v, %q", err, said)
	}
}

// TestRolesMadeAgain: roles that were deleted are made again. If a controller is refused although its roles exist, the
// message says so, once.
func TestRolesMadeAgain(t *testing.T) {
	kube := fake.NewClientset() // its SubjectAccessReviews refuse everything
	b := &bootstrap{config: Config{RBAC: true}, clients: &clients{kube: kube}}
	var said string
	if b.restoreRoles(t.Context(), &said); said != "" {
		t.Errorf("after roles were made it says %q", said)
	}
	if b.restoreRoles(t.Context(), &said); !strings.Contains(said, roles.All[0].User()) {
		t.Errorf("where nothing is missing it says %q", said)
	}
	must(t, kube.RbacV1().ClusterRoles().Delete(t.Context(), "concord:"+roles.Trigger.Name, metav1.DeleteOptions{}))
	if b.restoreRoles(t.Context(), &said); said != "" {
		t.Errorf("after one was deleted it says %q", said)
	}
}

// TestReviewsRefused: while SubjectAccessReviews are refused, controllers ask seldom, and the message says what refuses them.
func TestReviewsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, asked := fake.NewClientset(), 0
		kube.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			return true, nil, errors.New("a webhook refuses it")
		})
		b := &bootstrap{config: Config{RBAC: true}, clients: &clients{kube: kube}}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := b.awaitPermitted(ctx, roles.Trigger); err == nil || asked < 60 || asked > 100 {
			t.Errorf("in five minutes it has asked %d times, and got %v", asked, err)
		}
		var said string
		b.restoreRoles(t.Context(), &said) // makes the roles
		if b.restoreRoles(t.Context(), &said); !strings.Contains(said, "a webhook refuses it") {
			t.Errorf("it says %q", said)
		}
	})
}

// TestShutdownDelay: a server leaves when its shutdown delay is over. Before that, the pre-shutdown hooks of the
// servers that it delegates to, such as the hook that removes its address from the endpoints, have run once.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
		testDeparture(t, delay)
	}
}

func testDeparture(t *testing.T, delay time.Duration) {
	t.Helper()
	var ran []string
	hook := func(name string) genericapiserver.PreShutdownHookFunc {
		return func() error { ran = append(ran, name); return nil }
	}
	chain := genericapiserver.NewEmptyDelegate()
	var last *genericapiserver.GenericAPIServer
	for _, name := range []string{"inner", "outer"} {
		config := genericapiserver.NewConfig(serializer.NewCodecFactory(registry.LeaseScheme))
		config.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
		config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:1", &rest.Config{}
		config.SkipOpenAPIInstallation = true
		var err error
		if last, err = config.Complete(nil).New(name, chain); err != nil {
			t.Fatal(err)
		}
		last.AddPreShutdownHookOrDie(name, hook(name))
		chain = last
	}
	last.ShutdownDelayDuration = delay
	began := time.Now()
	last.AddPreShutdownHookOrDie("depart", afterOthers(last, func() error {
		if took := time.Since(began); took < delay {
			t.Errorf("it departs after %v", took)
		}
		return hook("depart")()
	}))
	if err := last.RunPreShutdownHooks(); err != nil {
		t.Error(err)
	}
	ran = slices.DeleteFunc(ran, func(name string) bool { return name == "outer" })
	if !slices.Equal(ran, []string{"inner", "depart"}) {
		t.Errorf("it ran %v", ran)
	}
}

// TestStoresNothing: requests for connections, tokens and dry runs are recognized as those that store nothing.
func TestStoresNothing(t *testing.T) {
	t.Parallel()
	resolver := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, test := range []struct {
		method, path string
		want         bool
	}{
		{http.MethodPost, "/api/v1/namespaces/d/serviceaccounts/s/token", true},
		{http.MethodPost, "/api/v1/namespaces/d/pods/p/exec", true},
		{http.MethodPost, "/api/v1/namespaces/d/services/s/proxy/some/path", true},
		{http.MethodPut, "/api/v1/nodes/n/proxy/", true},
		{http.MethodPatch, "/apis/apps/v1/namespaces/d/deployments/d?fieldManager=x&dryRun=All", true},
		{http.MethodPatch, "/apis/apps/v1/namespaces/d/deployments/d?dryRun=", false},
		{http.MethodPost, "/api/v1/namespaces/d/serviceaccounts", false},
		{http.MethodPost, "/api/v1/namespaces/d/pods/p/eviction", false},
		{http.MethodPut, "/apis/example.com/v1/namespaces/d/pods/p/proxy", false},
	} {
		r := httptest.NewRequest(test.method, test.path, nil)
		info, err := resolver.NewRequestInfo(r)
		must(t, err)
		got, ok := describe(r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
		if !ok || got.StoresNothing != test.want {
			t.Errorf("%s %s: %+v, %t", test.method, test.path, got, ok)
		}
	}
}

// TestRefusal: the reason in the metric of the alert tells a restored etcd, after which servers have to be restarted,
// from an etcd that cannot be written.
func TestRefusal(t *testing.T) {
	err := errors.New("etcd")
	for want, got := range map[string]string{"EtcdRestored": refusalOf(err, err), "EtcdUnwritable": refusalOf(nil, err), "NotReported": refusalOf(nil, nil)} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// partlyStale is the discovery document while the server of one aggregated API is away.
const partlyStale = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
{"metadata":{"name":"here.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[
 {"resource":"things","responseKind":{"group":"here.example.com","version":"v1","kind":"Thing"},"scope":"Namespaced","singularResource":"thing","verbs":["list"]}]}]},
{"metadata":{"name":"away.example.com"},"versions":[{"version":"v1","freshness":"Stale"}]}]}`

// TestKindsOfAggregated asserts that a resource does not count as missing while the aggregated API server that may
// serve it is away.
func TestKindsOfAggregated(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		body := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`
		if r.URL.Path == "/apis" {
			body = partlyStale
		}
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	must(t, err)
	k := newKinds(nil, client)
	if kind, err := k.Kind(t.Context(), schema.GroupResource{Group: "here.example.com", Resource: "things"}); err != nil || kind != "Thing" {
		t.Errorf("things are of the kind %q, %v", kind, err)
	}
	for group, missing := range map[string]bool{"here.example.com": true, "nowhere.example.com": true, "away.example.com": false} {
		if _, err := k.Kind(t.Context(), schema.GroupResource{Group: group, Resource: "widgets"}); err == nil || meta.IsNoMatchError(err) != missing {
			t.Errorf("widgets of %s: %v, want that they are missing: %t", group, err, missing)
		}
	}
}
