package generic_test

import (
	"net/http"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	concord "github.com/concord-dev/concord/server/generic"
)

// joiner notes which stores are built, and marks answers.
type joiner struct {
	mu     sync.Mutex
	stores map[schema.GroupResource]int
	hooked chan struct{}
}

func (j *joiner) Configure(c *concord.Configs) error {
	for _, getter := range []*generic.RESTOptionsGetter{
		&c.Aggregator.GenericConfig.RESTOptionsGetter, &c.ControlPlane.Generic.RESTOptionsGetter,
		&c.APIExtensions.GenericConfig.RESTOptionsGetter, &c.APIExtensions.ExtraConfig.CRDRESTOptionsGetter,
	} {
		*getter = noting{*getter, j}
	}
	chain := c.Aggregator.GenericConfig.BuildHandlerChainFunc
	c.Aggregator.GenericConfig.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return chain(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Joined", "yes")
			handler.ServeHTTP(w, r)
		}), config)
	}
	return nil
}

func (j *joiner) Start(c *concord.Chain) error {
	return c.Last().AddPostStartHook("joined", func(genericapiserver.PostStartHookContext) error { close(j.hooked); return nil })
}

type noting struct {
	generic.RESTOptionsGetter
	j *joiner
}

func (n noting) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	n.j.mu.Lock()
	n.j.stores[resource]++
	n.j.mu.Unlock()
	return n.RESTOptionsGetter.GetRESTOptions(resource, example)
}

func TestJoiner(t *testing.T) {
	j := &joiner{stores: map[schema.GroupResource]int{}, hooked: make(chan struct{})}
	s := startFor(t, func(o *concord.Options) { o.DataDir, o.Join = t.TempDir(), j })
	select {
	case <-j.hooked:
	default:
		t.Error("a ready server has not run the hook")
	}
	j.mu.Lock()
	for _, resource := range []schema.GroupResource{
		{Resource: "secrets"}, {Resource: "services"}, {Group: "discovery.k8s.io", Resource: "endpointslices"}, {Group: "coordination.k8s.io", Resource: "leases"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, {Group: "apiregistration.k8s.io", Resource: "apiservices"},
	} {
		if j.stores[resource] == 0 {
			t.Errorf("the store of %v was built without the joiner", resource)
		}
	}
	if j.stores[schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}] > 0 {
		t.Error("upstream's store of storage versions was built")
	}
	j.mu.Unlock()
	joined := false
	config := rest.CopyConfig(s.admin)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			joined = err == nil && response.Header.Get("X-Joined") == "yes"
			return response, err
		})
	})
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil || !joined {
		t.Errorf("a request passed the joiner's filter: %v (%v)", joined, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
