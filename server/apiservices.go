package server

import (
	"context"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

const (
	// Priorities as users know them: built-in groups before custom ones.
	builtinGroupPriority = 17000
	crdGroupPriority     = 1000
	crdVersionPriority   = 100
	registerWorkers      = 5
)

// apiServices keeps an APIService for every group/version that this server serves
// itself, so that discovery and kubectl find it.
type apiServices struct {
	register autoregister.AutoAPIServiceRegistration
	run      func(workers int, stopCh <-chan struct{})

	mu sync.Mutex
	// of holds the APIServices by the CRD that asks for them.
	of map[string]sets.Set[string]
}

func newAPIServices(c *chain, builtins []schema.GroupVersion) (*apiServices, error) {
	client, err := apiregistrationclient.NewForConfig(c.aggregator.GenericAPIServer.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	controller := autoregister.NewAutoRegisterController(c.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices(), client)
	s := &apiServices{register: controller, run: controller.Run, of: map[string]sets.Set[string]{}}
	for i, gv := range builtins {
		controller.AddAPIServiceToSyncOnStart(localAPIService(gv, builtinGroupPriority, int32(len(builtins)-i)))
	}
	return s, s.watch(c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions())
}

func localAPIService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version,
			GroupPriorityMinimum: group, VersionPriority: version,
		},
	}
}

func (s *apiServices) watch(crds crdinformers.CustomResourceDefinitionInformer) error {
	_, err := crds.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.observe(obj) },
		UpdateFunc: func(_, obj any) { s.observe(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
				s.want(crd.Name, nil)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	return nil
}

func (s *apiServices) observe(obj any) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	var served []schema.GroupVersion
	for _, v := range crd.Spec.Versions {
		if v.Served {
			served = append(served, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
		}
	}
	s.want(crd.Name, served)
}

// want records the group/versions that a CRD serves. One that no CRD serves any more is
// removed.
func (s *apiServices) want(crd string, served []schema.GroupVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.of[crd]
	now := sets.New[string]()
	for _, gv := range served {
		service := localAPIService(gv, crdGroupPriority, crdVersionPriority)
		now.Insert(service.Name)
		s.register.AddAPIServiceToSync(service)
	}
	s.of[crd] = now
	if now.Len() == 0 {
		delete(s.of, crd)
	}
	for name := range before.Difference(now) {
		if !s.wanted(name) {
			s.register.RemoveAPIServiceToSync(name)
		}
	}
}

func (s *apiServices) wanted(name string) bool {
	for _, names := range s.of {
		if names.Has(name) {
			return true
		}
	}
	return false
}

// Run registers until ctx ends. It starts once the CRDs are known, so that no
// APIService of a CRD is taken for a leftover.
func (s *apiServices) Run(ctx context.Context, crdsSynced cache.InformerSynced) {
	if !cache.WaitForCacheSync(ctx.Done(), crdsSynced) {
		return
	}
	s.run(registerWorkers, ctx.Done())
}
