package claim

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// newQueue returns the queue of migrations to look at, by name. seen returns the store of known migrations.
func (c *Controller) newQueue(seen func() cache.Store) workqueue.TypedRateLimitingInterface[string] {
	order := &lanes{soon: workqueue.DefaultQueue[string](), late: workqueue.DefaultQueue[string](), later: func(name string) bool {
		if c.cfg.Later == nil {
			return false
		}
		obj, ok, _ := seen().GetByKey(name)
		return ok && c.cfg.Later(obj.(*migrationv1alpha1.StorageVersionMigration))
	}}
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
			Clock: c.cfg.Clock,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Clock: c.cfg.Clock, Queue: order}),
		})})
}

// lanes makes migrations that come later wait for the others. They get every turnsOfLate-th turn all the same: others
// that fail again and again do not keep them from theirs for ever.
type lanes struct {
	soon, late workqueue.Queue[string]
	later      func(name string) bool
	turns      int // of others, since the last one of those that come later
}

const turnsOfLate = 8

// Touch implements workqueue.Queue.
func (l *lanes) Touch(string) {}

// Push implements workqueue.Queue.
func (l *lanes) Push(name string) {
	if l.later(name) {
		l.late.Push(name)
		return
	}
	l.soon.Push(name)
}

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
