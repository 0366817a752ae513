package claim

import (
	"context"
	"slices"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/workers"
)

// newQueue returns the queue of migrations to look at, by name. seen returns the store of known migrations.
func (c *Controller) newQueue(seen func() cache.Store) workqueue.TypedRateLimitingInterface[string] {
	rank := func(name string) int {
		rank := fresh // if it was deleted: its turn does nothing
		// Get calls this, which is outside of what next guards.
		_ = workers.Do(context.Background(), "migrate", func() error {
			if obj, known, _ := seen().GetByKey(name); known {
				rank = c.rank(obj.(*migrationv1alpha1.StorageVersionMigration))
			}
			return nil
		})
		return rank
	}
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
			Clock: c.cfg.Clock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Clock: c.cfg.Clock, Queue: &order{rank: rank}}),
		})})
}

// Migrations of a lower rank are taken first. later is added to the rank of those for which Config.Later is true.
const (
	interrupted = 0
	fresh       = 1
	later       = 2
	ranks       = 4
)

func (c *Controller) rank(m *migrationv1alpha1.StorageVersionMigration) int {
	rank := fresh
	if hasBegun(m) {
		rank = interrupted
	}
	if c.cfg.Later != nil && c.cfg.Later(m) {
		rank += later
	}
	return rank
}

// hasBegun reports whether a migration has begun, so that it goes on before others begin. If another server is at work
// on it, looking at it costs a few reads. If this server is to try it again, nobody else may take it, and a few errors
// in a row end it.
func hasBegun(m *migrationv1alpha1.StorageVersionMigration) bool {
	return !m.Spec.Paused && migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning) != nil
}

// order is the names that wait, in the order in which they came. Pop takes the first of the lowest rank at that moment,
// but some turns go to others (turns).
type order struct {
	names []string
	rank  func(name string) int
	// soon shares the turns between migrations for which Config.Later is not true and those for which it is.
	soon turns
	// begun shares them between those that have begun and those that have not: at 0 among the first, at later among the
	// second.
	begun [later + 1]turns
}

// Touch implements workqueue.Queue.
func (o *order) Touch(string) {}

// Push implements workqueue.Queue.
func (o *order) Push(name string) { o.names = append(o.names, name) }

// Len implements workqueue.Queue.
func (o *order) Len() int { return len(o.names) }

// Pop implements workqueue.Queue.
func (o *order) Pop() string {
	first := [ranks]int{-1, -1, -1, -1}
	for i, name := range o.names {
		if rank := o.rank(name); first[rank] < 0 {
			first[rank] = i
		}
	}
	waits := func(rank int) bool { return first[rank] >= 0 }
	rank := interrupted
	if o.soon.next(waits(interrupted) || waits(fresh), waits(later+interrupted) || waits(later+fresh)) {
		rank = later
	}
	if o.begun[rank].next(waits(rank), waits(rank+fresh)) {
		rank += fresh
	}
	at := first[rank]
	name := o.names[at]
	o.names = slices.Delete(o.names, at, at+1)
	return name
}

// turns counts, while names of two kinds wait, those of the first kind that were taken since the last one of the second
// kind. Every turnsOfLate-th turn is the second kind's: names of the first kind that fail, or are looked at, again and
// again do not keep the others waiting for ever.
type turns int

const turnsOfLate = 8

// next reports whether the next turn is the second kind's, given which kinds wait.
func (t *turns) next(first, second bool) bool {
	if *t++; first && second && *t < turnsOfLate {
		return false
	}
	*t = 0
	return second
}
