package generic_test

import (
	"net/http"
	"sync"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"

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

func (j *joiner) StorageVersions() controlplaneapiserver.RESTStorageProvider {
	return always{apiserverinternalrest.StorageProvider{}}
}

func (j *joiner) Hook(s *genericapiserver.GenericAPIServer) error {
	return s.AddPostStartHook("joined", func(genericapiserver.PostStartHookContext) error { close(j.hooked); return nil })
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

// always serves StorageVersions, which are off by default.
type always struct {
	controlplaneapiserver.RESTStorageProvider
}

func (a always) NewRESTStorage(_ serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	on := serverstorage.NewResourceConfig()
	on.EnableVersions(apiserverinternalv1alpha1.SchemeGroupVersion)
	return a.RESTStorageProvider.NewRESTStorage(on, options)
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
		{Group: "internal.apiserver.k8s.io", Resource: "storageversions"},
	} {
		if j.stores[resource] == 0 {
			t.Errorf("the store of %v was built without the joiner", resource)
		}
	}
	j.mu.Unlock()
	if _, err := s.kube.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("storage versions: %v", err)
	}
	if _, err := shared.kube.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("storage versions are served without a joiner")
	}
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
