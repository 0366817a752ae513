package claim

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

// minRetry and maxRetry bound the time between two attempts that end in errors.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 15 * time.Second
	// spares limits the migrations that run besides those that make no progress for a reason of their own, such as a
	// conversion webhook that hangs, or hardly any, so that the latter do not hold up all others.
	spares = 4
)

// Run does migrations until ctx ends. Those under way then are continued by the server that
// finds that this server's Lease is gone.
func (c *Controller) Run(ctx context.Context) {
	var seen cache.Store
	queue := c.newQueue(func() cache.Store { return seen })
	context.AfterFunc(ctx, queue.ShutDown)
	seen, migrations := listwatch.Informer(c.cfg.Client, "migrate-watch", &migrationv1alpha1.StorageVersionMigrationList{}, nil,
		func(was, is *migrationv1alpha1.StorageVersionMigration, gone bool) {
			c.seen(queue, was, is, gone)
		})
	_, versions := listwatch.Informer(c.cfg.Client, "migrate-watch", &apiserverinternalv1alpha1.StorageVersionList{}, nil,
		func(_, is *apiserverinternalv1alpha1.StorageVersion, gone bool) { c.ObserveStorageVersion(is, gone) })
	var wg sync.WaitGroup
	wg.Go(func() { migrations.RunWithContext(ctx) })
	wg.Go(func() { versions.RunWithContext(ctx) })
	beats := c.cfg.Clock.NewTicker(max(c.cfg.ProgressPeriod/3, time.Millisecond)) // so much later at most
	defer beats.Stop()
	var spare atomic.Int32 // how many are at work
	beside := func() {
		if queue.Len() > 0 && int(spare.Load()) < min(c.hindered(), spares) {
			spare.Add(1)
			wg.Go(func() {
				defer spare.Add(-1)
				for queue.Len() > 0 && c.hindered() > 0 && c.next(ctx, queue, seen) {
				}
			})
		}
	}
	wg.Go(func() {
		workers.Loop(ctx, "migrate-progress", func(ctx context.Context) { c.beat(ctx, beats.C(), beside) })
	})
	for range c.cfg.Workers {
		wg.Go(func() {
			select {
			case <-migrations.HasSyncedChecker().Done():
				// Workers begin only when all migrations are listed, else one could begin a new migration before an
				// interrupted one is known.
			case <-ctx.Done():
			}
			for c.next(ctx, queue, seen) {
			}
		})
	}
	wg.Wait()
}

// beat has the status of every rewrite written for which that is due, until ctx ends: a
// Rewriter that waits reports nothing. Each time, then is called.
func (c *Controller) beat(ctx context.Context, due <-chan time.Time, then func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-due:
		}
		for _, w := range c.works() {
			w.beat()
		}
		then()
	}
}

// hindered counts the migrations that others may be done beside.
func (c *Controller) hindered() (n int) {
	for _, w := range c.works() {
		if w.hindered.Load() {
			n++
		}
	}
	return n
}

// seen takes in what the watch tells of a migration that was so before, or nil.
func (c *Controller) seen(queue workqueue.TypedInterface[string], was, is *migrationv1alpha1.StorageVersionMigration, gone bool) {
	c.ObserveMigration(is, gone)
	if !gone && worthALook(was, is, c.cfg.ID()) {
		queue.Add(is.Name)
	}
}

// worthALook says whether a migration that was so, or nil, and is so now may be one for
// this server to claim, or to watch over. A change that a migrator writes on it while it
// works is not, nor is this server's own claim: the claimant works, and tries again after an error.
func worthALook(was, is *migrationv1alpha1.StorageVersionMigration, self agree.ServerID) bool {
	claimer := is.Annotations[migrationv1alpha1.ClaimedByAnnotation]
	switch {
	case migrationv1alpha1.Final(is):
		return false
	case was != nil && migrationv1alpha1.Final(was):
		return true // etcd was restored: nobody works on it any more
	case was == nil || was.UID != is.UID || migrationv1alpha1.TargetOf(was) != migrationv1alpha1.TargetOf(is) || was.Spec.Paused != is.Spec.Paused:
		return true
	}
	return was.Annotations[migrationv1alpha1.ClaimedByAnnotation] != claimer && (claimer == "" || claimer != string(self))
}

// next does the next migration, unless it is known to be gone or finished since it was queued, which is the result of
// most polls. It returns false when the queue is closed.
func (c *Controller) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], seen cache.Store) bool {
	name, stop := queue.Get()
	if stop {
		return false
	}
	defer queue.Done(name)
	if obj, ok, _ := seen.GetByKey(name); !ok || migrationv1alpha1.Final(obj.(*migrationv1alpha1.StorageVersionMigration)) {
		queue.Forget(name)
		return true
	}
	var after time.Duration
	err := workers.Do(ctx, "migrate", func() (err error) {
		after, err = c.Step(ctx, name)
		return err
	})
	if err != nil {
		level := 0
		if apierrors.IsConflict(err) || ctx.Err() != nil {
			level = 2
		}
		c.cfg.Logger.V(level).Info("Looking at a migration again", "migration", name, "reason", err.Error())
		queue.AddRateLimited(name)
		return true
	}
	queue.Forget(name)
	if after > 0 {
		queue.AddAfter(name, after)
	}
	return true
}

// ObserveStorageVersion interrupts rewrites that a changed or deleted StorageVersion may
// not permit any more, so that they end before they run into the fence. Seeing an old
// one does no harm: the rewrite reads it again, and goes on.
func (c *Controller) ObserveStorageVersion(sv *apiserverinternalv1alpha1.StorageVersion, gone bool) {
	gr, err := storageversion.GroupResource(sv.Name)
	if err != nil {
		return
	}
	c.interrupt(errMoved, func(w *work) bool { return w.gr == gr && (gone || judge(sv, w.target) != nil) })
}

// ObserveDefinition interrupts rewrites that run under another state of a CustomResourceDefinition, because they would
// not count. If the definition stores the same encoding they begin again, so that a rewrite that waits for a
// conversion webhook does not wait for one that was replaced. Seeing an old state does no harm.
func (c *Controller) ObserveDefinition(crd *apiextensionsv1.CustomResourceDefinition) {
	gr := migrationv1alpha1.ResourceOf(crd)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.definitions[gr] = definition{CRD{UID: string(crd.UID), Generation: crd.Generation}, migrationv1alpha1.Stores(crd)}
	for w, cancel := range c.running {
		if w.gr == gr {
			c.redefine(w, cancel)
		}
	}
}

// redefine interrupts a rewrite if it runs under another definition than was observed. It is called with mu.
func (c *Controller) redefine(w *work, cancel context.CancelCauseFunc) {
	is, known := c.definitions[w.gr]
	switch {
	case !known || w.under == nil || w.under.UID == is.UID && w.under.Generation >= is.Generation:
	case is.stores == w.target.Encoding.Plain():
		cancel(errRedefined)
	default:
		cancel(errMoved)
	}
}

// ObserveMigration interrupts the rewrite of a migration that is gone, has been ended, is to
// rest, or to go on at another speed.
func (c *Controller) ObserveMigration(m *migrationv1alpha1.StorageVersionMigration, gone bool) {
	if !gone && !migrationv1alpha1.Final(m) {
		if m.Spec.Paused {
			c.interrupt(errPaused, func(w *work) bool { return w.uid == m.UID })
		}
		c.interrupt(errSpeed, func(w *work) bool { return w.uid == m.UID && w.speed != speedOf(m) })
		return
	}
	c.interrupt(errTaken, func(w *work) bool { return w.uid == m.UID })
	c.forget(m.UID)
}

func (c *Controller) interrupt(cause error, which func(*work) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w, cancel := range c.running {
		if which(w) {
			cancel(cause)
		}
	}
}

func (c *Controller) works() []*work {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.running))
}

func (c *Controller) register(w *work, cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[w], w.speed, w.under = cancel, speedOf(w.m), w.pin
	c.redefine(w, cancel)
	delete(c.definitions, w.gr) // one that is older than the pin would interrupt again and again
}

func (c *Controller) unregister(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, w)
}
