package mirror

import (
	"context"
	"errors"
	"sync"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

const (
	// minRetry and maxRetry bound the time between two looks that ended in errors.
	minRetry = 50 * time.Millisecond
	maxRetry = 30 * time.Second
	// leftRetry is the time between two looks at a migration that is left to another migrator.
	leftRetry = 10 * time.Second
	// stepTimeout bounds one look, in real time.
	stepTimeout = 30 * time.Second
	// byOwner indexes copies by the name of their original.
	byOwner = "owner"
)

// Run mirrors migrations until ctx ends, once at a time. Call it while this server leads.
func (c *Controller) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: c.cfg.Clock})
	_, originals := c.source(&storagemigrationv1.StorageVersionMigrationList{}, &storagemigrationv1.StorageVersionMigration{}, func(obj client.Object) {
		queue.Add(obj.GetName())
	})
	store, copies := c.source(&migrationv1alpha1.StorageVersionMigrationList{}, &migrationv1alpha1.StorageVersionMigration{}, func(obj client.Object) {
		if m, ok := obj.(*migrationv1alpha1.StorageVersionMigration); ok && migrationv1alpha1.Original(m) != nil {
			queue.Add(migrationv1alpha1.Original(m).Name)
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { originals.RunWithContext(ctx) })
	wg.Go(func() { copies.RunWithContext(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		queue.ShutDown()
	})
	if cache.WaitForCacheSync(ctx.Done(), originals.HasSynced, copies.HasSynced) {
		watching := &Controller{cfg: c.cfg, copies: indexed{store.(cache.Indexer)}.of}
		wg.Go(func() { watching.work(ctx, queue) })
	}
	wg.Wait()
}

func (c *Controller) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	for {
		name, stop := queue.Get()
		if stop {
			return
		}
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		err := workers.Do(step, "mirror", func() error { return c.Step(step, name) })
		cancel()
		switch {
		case err == nil:
			queue.Forget(name)
		case errors.Is(err, ErrLeft):
			queue.Forget(name)
			queue.AddAfter(name, leftRetry)
		default:
			level := 0
			if apierrors.IsConflict(err) || ctx.Err() != nil {
				level = 2
			}
			c.cfg.Logger.V(level).Info("Looking at a migration again", "original", name, "reason", err.Error())
			queue.AddRateLimited(name)
		}
		queue.Done(name)
	}
}

// indexed lists copies from a watch.
type indexed struct{ cache.Indexer }

func (i indexed) of(_ context.Context, name string) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	objs, err := i.ByIndex(byOwner, name)
	copies := make([]*migrationv1alpha1.StorageVersionMigration, 0, len(objs))
	for _, obj := range objs {
		copies = append(copies, obj.(*migrationv1alpha1.StorageVersionMigration))
	}
	return copies, err
}

// source watches objects and hands over each that is new, changed or gone.
func (c *Controller) source(list client.ObjectList, object client.Object, handle func(client.Object)) (cache.Store, cache.Controller) {
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listwatch.Of(c.cfg.Client, list),
		ObjectType:    object,
		Handler: listwatch.Handler("mirror-watch", cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { handle(obj.(client.Object)) },
			UpdateFunc: func(_, obj any) { handle(obj.(client.Object)) },
			DeleteFunc: func(obj any) {
				if last, ok := listwatch.Deleted[client.Object](obj); ok {
					handle(last)
				}
			},
		}),
		Indexers: cache.Indexers{byOwner: func(obj any) ([]string, error) {
			if m, ok := obj.(*migrationv1alpha1.StorageVersionMigration); ok && migrationv1alpha1.Original(m) != nil {
				return []string{migrationv1alpha1.Original(m).Name}, nil
			}
			return nil, nil
		}},
	})
}
