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
	context.AfterFunc(ctx, queue.ShutDown)
	_, originals := listwatch.Informer(c.cfg.Client, "mirror-watch", &storagemigrationv1.StorageVersionMigrationList{}, nil,
		func(_, is *storagemigrationv1.StorageVersionMigration, _ bool) { queue.Add(is.Name) })
	indexers := cache.Indexers{byOwner: func(obj any) ([]string, error) {
		return owner(obj.(*migrationv1alpha1.StorageVersionMigration)), nil
	}}
	store, copies := listwatch.Informer(c.cfg.Client, "mirror-watch", &migrationv1alpha1.StorageVersionMigrationList{}, indexers,
		func(_, is *migrationv1alpha1.StorageVersionMigration, _ bool) {
			for _, name := range owner(is) {
				queue.Add(name)
			}
		})
	var wg sync.WaitGroup
	wg.Go(func() { originals.RunWithContext(ctx) })
	wg.Go(func() { copies.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), originals.HasSynced, copies.HasSynced) {
		watching := &Controller{cfg: c.cfg, copies: func(_ context.Context, name string) ([]*migrationv1alpha1.StorageVersionMigration, error) {
			return listwatch.Indexed[*migrationv1alpha1.StorageVersionMigration](store, byOwner, name)
		}}
		wg.Go(func() { watching.work(ctx, queue) })
	}
	wg.Wait()
}

// owner is the name of a copy's original; there is none for other migrations.
func owner(m *migrationv1alpha1.StorageVersionMigration) []string {
	if ref := migrationv1alpha1.Original(m); ref != nil {
		return []string{ref.Name}
	}
	return nil
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
