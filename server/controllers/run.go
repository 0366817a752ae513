package controllers

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"

	"github.com/concord-dev/concord/workers"
)

const (
	controllersNamespace = "kube-system"
	informerResync       = 12 * time.Hour
)

// term is one run of the controllers. Nothing of it is used again by the next.
type term struct {
	Config
	shared   informers.SharedInformerFactory
	metadata metadatainformer.SharedInformerFactory
	mapper   *restmapper.DeferredDiscoveryRESTMapper
	// served are the resources that there were when the term began.
	served map[schema.GroupVersionResource]bool
	// started is closed when the informers that controllers asked for have been started.
	started chan struct{}
	loops   []loop
}

// loop is the work of a controller until its context ends.
type loop func(context.Context)

// Run runs the controllers until ctx ends. It returns when all of them have ended, and may
// be called again then.
func Run(ctx context.Context, config Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, err := newTerm(config)
	if err != nil {
		return err
	}
	for _, c := range t.all() {
		as := config.as(c.as)
		client, err := kubernetes.NewForConfig(as)
		if err == nil {
			err = c.create(ctx, as, client)
		}
		if err != nil {
			return fmt.Errorf("controller %s: %w", c.name, err)
		}
	}
	t.shared.Start(ctx.Done())
	t.metadata.Start(ctx.Done())
	close(t.started)
	err = runLoops(ctx, append(t.loops, func(ctx context.Context) {
		wait.UntilWithContext(ctx, func(context.Context) { t.mapper.Reset() }, discoveryInterval)
	}))
	cancel()
	t.shared.Shutdown()
	t.metadata.Shutdown()
	return err
}

// runLoops runs controllers until ctx ends or one of them panics. Then the others end as well, and with them the term;
// the next term runs all of them again.
func runLoops(ctx context.Context, loops []loop) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range loops {
		group.Go(func() error {
			return workers.Do(ctx, "kubernetes-controllers", func() error { run(ctx); return nil })
		})
	}
	group.Go(func() error { <-ctx.Done(); return nil })
	return group.Wait()
}

// newTerm makes the informers and the REST mapper that the controllers share. They have
// kube-controller-manager's own identity, as there.
func newTerm(config Config) (*term, error) {
	all := config.as(user.KubeControllerManager)
	client, err := kubernetes.NewForConfig(all)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(all)
	if err != nil {
		return nil, err
	}
	served, err := servedBy(client.Discovery())
	if err != nil {
		return nil, err
	}
	return &term{
		Config:   config,
		served:   served,
		shared:   informers.NewSharedInformerFactory(client, informerResync),
		metadata: metadatainformer.NewSharedInformerFactory(objects, informerResync),
		mapper:   restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery())),
		started:  make(chan struct{}),
	}, nil
}

// servedBy returns which resources there are: informers of others would never sync.
func servedBy(client discovery.DiscoveryInterface) (map[schema.GroupVersionResource]bool, error) {
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 { // an aggregated API that does not answer is no reason to wait
		return nil, fmt.Errorf("discovery: %w", err)
	}
	served := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discovery: %w", err)
		}
		for _, r := range list.APIResources {
			served[gv.WithResource(r.Name)] = true
		}
	}
	return served, nil
}

// objects returns informers for any resource: of whole objects if the client library knows them, otherwise of
// metadata.
func (t *term) objects() informerfactory.InformerFactory {
	return informerfactory.NewInformerFactory(t.shared, t.metadata)
}

func (t *term) run(l loop) { t.loops = append(t.loops, l) }

// account is the name of one controller's service account.
func account(controller string) string {
	return serviceaccount.MakeUsername(controllersNamespace, controller)
}

// as returns a client configuration for another user, if RBAC permits that user's work. Priority and fairness decides
// how many requests that user may have at once.
func (c *Config) as(username string) *rest.Config {
	config := rest.AddUserAgent(rest.CopyConfig(c.Client), username)
	if !c.NoRBAC {
		config.Impersonate = rest.ImpersonationConfig{UserName: username}
	}
	config.QPS = -1
	return config
}
