package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/member"
)

// definitionResync is how often the member receives every definition again, so that it reports changes that it has
// missed, for example because a handler panicked.
const definitionResync = 10 * time.Second

// definitions holds the part of the CustomResourceDefinitions that the protocol needs: the versions, the storage
// version, and how objects are converted. Schemas are dropped, since the server already holds them once.
type definitions struct {
	// fence is set when it is made, after the member, which looks at the definitions; nil in a server that reports nothing.
	fence    *fence.Fence
	raw      rest.Interface
	convert  *convert.Resources
	informer cache.SharedIndexInformer
	// stores says whether this server stores custom resources.
	stores bool
	// changed is called for every change of a definition's spec, its storedVersions, or its hold annotation.
	changed func(is *apiextensionsv1.CustomResourceDefinition)
	// synced says that the member has received the events of all definitions that existed at the start.
	synced atomic.Pointer[cache.InformerSynced]
}

func newDefinitions(clients *clients, convert *convert.Resources) (*definitions, error) {
	d := &definitions{
		convert:  convert,
		raw:      clients.kube.Discovery().RESTClient(),
		informer: informDefinitions(clients.objects, definitionResync),
	}
	return d, d.informer.SetTransform(withoutSchemas)
}

// informDefinitions returns an informer that lists the definitions before it watches them. client-go's own informer
// would receive them through the watch, and wait for a bookmark before it delivers the first one.
func informDefinitions(objects client.WithWatch, resync time.Duration) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(listwatch.Of(objects, &apiextensionsv1.CustomResourceDefinitionList{}),
		&apiextensionsv1.CustomResourceDefinition{}, resync, cache.Indexers{})
}

// withoutSchemas drops the large parts of a definition, and all annotations except for the one that is used here.
func withoutSchemas(obj any) (any, error) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return obj, nil
	}
	hold, said := crd.Annotations[migrationv1alpha1.HoldAnnotation]
	if crd.Annotations = nil; said {
		crd.Annotations = map[string]string{migrationv1alpha1.HoldAnnotation: hold}
	}
	return migrationv1alpha1.WithoutSchemas(crd)
}

// stored records that this server stores custom resources, and how.
func (d *definitions) stored(getter generic.RESTOptionsGetter, services webhook.ServiceResolver, resolver webhook.AuthenticationInfoResolverWrapper) {
	d.stores = true
	d.convert.Stored(getter, services, resolver)
}

// run watches the definitions until ctx ends, and passes them to the member.
func (d *definitions) run(ctx context.Context) {
	if d.stores {
		d.informer.RunWithContext(ctx)
	}
}

// follow registers the handler that passes every definition to the member.
func (d *definitions) follow(m *member.Member) error {
	registration, err := d.informer.AddEventHandler(listwatch.Handler("definitions", cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { m.ObserveCRD(obj.(*apiextensionsv1.CustomResourceDefinition)) },
		UpdateFunc: func(old, obj any) {
			was, is := old.(*apiextensionsv1.CustomResourceDefinition), obj.(*apiextensionsv1.CustomResourceDefinition)
			m.ObserveCRD(is)
			d.compare(was, is)
		},
		DeleteFunc: func(obj any) {
			if crd, ok := listwatch.Deleted[*apiextensionsv1.CustomResourceDefinition](obj); ok {
				m.ForgetCRD(crd)
			}
		},
	}))
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	seen := cache.InformerSynced(registration.HasSynced)
	d.synced.Store(&seen)
	return nil
}

// compare reports changes of storedVersions, of the hold, and of the spec. The trigger acts on all of them: a change of
// the spec ends the pause after a failed migration. A migrating server acts on changes of the spec.
func (d *definitions) compare(was, is *apiextensionsv1.CustomResourceDefinition) {
	if was.Generation != is.Generation || !slices.Equal(was.Status.StoredVersions, is.Status.StoredVersions) || migrationv1alpha1.Held(was.Annotations) != migrationv1alpha1.Held(is.Annotations) {
		d.changed(is)
	}
}

// known reports whether the member has received all definitions that existed at the start.
func (d *definitions) known() bool {
	if !d.stores {
		return true
	}
	seen := d.synced.Load()
	return seen != nil && (*seen)()
}

// get returns a resource's definition, as this server knows it; nil if it knows none.
func (d *definitions) get(gr schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
	obj, exists, err := d.informer.GetIndexer().GetByKey(gr.String())
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if err != nil || !exists || !ok {
		return nil
	}
	return crd
}

// rebuildBackoff lists for about five seconds at most.
var rebuildBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Second}

// rebuild makes the custom resource's new handler exist, by lists that the handler's
// builder answers. The old handler may answer the first of them: it is
// listed until the newest store writes what the definition says.
func (d *definitions) rebuild(ctx context.Context, crd string, gr schema.GroupResource, served string) {
	gv, err := schema.ParseGroupVersion(served)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A custom resource's version cannot be listed", "crd", crd)
		return
	}
	last := errors.New("not listed yet")
	err = wait.ExponentialBackoffWithContext(ctx, rebuildBackoff, func(ctx context.Context) (bool, error) {
		last = d.raw.Get().AbsPath("/apis", gv.Group, gv.Version, gr.Resource).Param("limit", "1").Do(ctx).Error()
		return last == nil && d.isBuilt(gr), nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(1).Info("A custom resource's handler is built with its next request instead", "crd", crd, "err", errors.Join(err, last))
	}
}

// isBuilt says whether the newest store of the resource writes what its definition says,
// or there is no definition any more.
func (d *definitions) isBuilt(gr schema.GroupResource) bool {
	crd := d.get(gr)
	if crd == nil {
		return true
	}
	store, built := d.fence.Newest(gr)
	stores := migrationv1alpha1.Stores(crd)
	return stores == "" || built && store.Encoding == stores
}
