package claim

import (
	"slices"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// newQueue returns the queue of migrations to look at, by name. seen returns the store of known migrations.
func (c *Controller) newQueue(seen func() cache.Store) workqueue.TypedRateLimitingInterface[string] {
	is := func(what func(*migrationv1alpha1.StorageVersionMigration) bool) func(string) bool {
		return func(name string) bool {
			obj, ok, _ := seen().GetByKey(name)
			return ok && what(obj.(*migrationv1alpha1.StorageVersionMigration))
		}
	}
	later := func(m *migrationv1alpha1.StorageVersionMigration) bool { return c.cfg.Later != nil && c.cfg.Later(m) }
	begun := is(func(m *migrationv1alpha1.StorageVersionMigration) bool { return interrupted(m, c.cfg.ID()) })
	fresh := func(name string) bool { return !begun(name) }
	order := newLanes(newLanes(&fifo{}, &fifo{}, fresh), newLanes(&fifo{}, &fifo{}, fresh), is(later))
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
			Clock: c.cfg.Clock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Clock: c.cfg.Clock, Queue: order}),
		})})
}

// interrupted reports whether a migration was begun that this server is not at work on, and does not try again: unless
// its claimer is there, it goes on before others begin. If the claimer is there, no more than a look is lost.
func interrupted(m *migrationv1alpha1.StorageVersionMigration, self agree.ServerID) bool {
	claimer := m.Annotations[migrationv1alpha1.ClaimedByAnnotation]
	return !m.Spec.Paused && migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning) != nil && (claimer == "" || claimer != string(self))
}

// line is a queue that names can be taken out of.
type line interface {
	workqueue.Queue[string]
	// Remove says whether the name was there.
	Remove(name string) bool
}

// fifo is a line that keeps the order.
type fifo []string

// Touch implements workqueue.Queue.
func (f *fifo) Touch(string) {}

// Push implements workqueue.Queue.
func (f *fifo) Push(name string) { *f = append(*f, name) }

// Len implements workqueue.Queue.
func (f *fifo) Len() int { return len(*f) }

// Pop implements workqueue.Queue.
func (f *fifo) Pop() string {
	name := (*f)[0]
	*f = (*f)[1:]
	return name
}

// Remove implements line.
func (f *fifo) Remove(name string) bool {
	i := slices.Index(*f, name)
	if i >= 0 {
		*f = slices.Delete(*f, i, i+1)
	}
	return i >= 0
}

// lanes makes migrations that come later wait for the others. They get every turnsOfLate-th turn all the same: others
// that fail, or are looked at, again and again do not keep them from theirs for ever.
type lanes struct {
	soon, late line
	later      func(name string) bool
	turns      int // of others, since the last one of those that come later
}

const turnsOfLate = 8

func newLanes(soon, late line, later func(name string) bool) *lanes {
	return &lanes{soon: soon, late: late, later: later}
}

// of returns the lane of a name, and the other one.
func (l *lanes) of(name string) (is, other line) {
	if l.later(name) {
		return l.late, l.soon
	}
	return l.soon, l.late
}

// Touch implements workqueue.Queue: a name that waits changes the lane when its migration has changed.
func (l *lanes) Touch(name string) {
	is, other := l.of(name)
	if other.Remove(name) {
		is.Push(name)
		return
	}
	is.Touch(name)
}

// Push implements workqueue.Queue.
func (l *lanes) Push(name string) {
	is, _ := l.of(name)
	is.Push(name)
}

// Remove implements line.
func (l *lanes) Remove(name string) bool { return l.soon.Remove(name) || l.late.Remove(name) }

// Len implements workqueue.Queue.
func (l *lanes) Len() int { return l.soon.Len() + l.late.Len() }

// Pop implements workqueue.Queue.
func (l *lanes) Pop() string {
	l.turns++
	if l.soon.Len() == 0 || l.late.Len() > 0 && l.turns >= turnsOfLate {
		l.turns = 0
		return l.late.Pop()
	}
	return l.soon.Pop()
}
