package server

import (
	"context"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

const (
	// Priorities as users know them: built-in groups before custom ones.
	builtinGroupPriority = 17000
	crdGroupPriority     = 1000
	// migrationPriority has kubectl mean migration.k8s.io by "storageversionmigrations": all
	// migrations are there, those made in storagemigration.k8s.io too.
	migrationPriority  = builtinGroupPriority + 100
	crdVersionPriority = 100
	registerWorkers    = 5
	// managedOnStart marks an APIService that servers create, update or delete when they
	// start, and leave alone afterwards.
	managedOnStart = "onstart"
)

// apiServices keeps an APIService for every group/version that this server serves
// itself, so that discovery and kubectl find it, whatever other servers do not serve.
type apiServices struct {
	register autoregister.AutoAPIServiceRegistration
	run      func(workers int, stopCh <-chan struct{})

	client apiregistrationclient.APIServicesGetter
	// builtins are the APIServices of what is built in, by name; lost are the names of
	// those that somebody has deleted.
	builtins map[string]*apiregistrationv1.APIService
	lost     workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// of holds the APIServices by the CRD that asks for them.
	of map[string]sets.Set[string]
}

func newAPIServices(c *chain, builtins []schema.GroupVersion) (*apiServices, error) {
	client, err := apiregistrationclient.NewForConfig(c.aggregator.GenericAPIServer.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	services := c.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices()
	controller := autoregister.NewAutoRegisterController(services, client)
	s := &apiServices{
		register: controller, run: controller.Run, of: map[string]sets.Set[string]{},
		client: client, builtins: map[string]*apiregistrationv1.APIService{},
		lost: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	for i, gv := range builtins {
		service := localAPIService(gv, builtinGroupPriority, int32(len(builtins)-i))
		service.Labels = map[string]string{autoregister.AutoRegisterManagedLabel: managedOnStart}
		controller.AddAPIServiceToSyncOnStart(service)
		s.builtins[service.Name] = service
	}
	if err := s.noticeLost(services); err != nil {
		return nil, err
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

// noticeLost watches for the end of an APIService of what is built in. A server that does
// not serve it, for it stands for an older release or has a feature off, deletes it when it
// starts, and only then.
func (s *apiServices) noticeLost(services apiregistrationinformers.APIServiceInformer) error {
	_, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil && s.builtins[name] != nil {
			s.lost.Add(name)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch APIServices: %w", err)
	}
	return nil
}

// restore makes the next lost APIService again. It returns false when there will be none.
func (s *apiServices) restore(ctx context.Context) bool {
	name, stop := s.lost.Get()
	if stop {
		return false
	}
	defer s.lost.Done(name)
	_, err := s.client.APIServices().Create(ctx, s.builtins[name].DeepCopy(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		klog.FromContext(ctx).V(1).Info("An APIService that was deleted is not restored yet", "apiService", name, "err", err)
		s.lost.AddRateLimited(name)
		return true
	}
	s.lost.Forget(name)
	return true
}

func (s *apiServices) watch(crds crdinformers.CustomResourceDefinitionInformer) error {
	_, err := crds.Informer().AddEventHandler(listwatch.Handler("apiservices-watch", cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.observe(obj) },
		UpdateFunc: func(_, obj any) { s.observe(obj) },
		DeleteFunc: func(obj any) {
			if crd, ok := listwatch.Deleted[*apiextensionsv1.CustomResourceDefinition](obj); ok {
				s.want(crd.Name, nil)
			}
		},
	}))
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
		priority := int32(crdGroupPriority)
		if gv.Group == migrationv1alpha1.SchemeGroupVersion.Group {
			priority = migrationPriority
		}
		service := localAPIService(gv, priority, crdVersionPriority)
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
	go func() {
		<-ctx.Done()
		s.lost.ShutDown()
	}()
	go workers.Loop(ctx, "restore-apiservices", func(ctx context.Context) {
		for s.restore(ctx) {
		}
	})
	s.run(registerWorkers, ctx.Done())
}
