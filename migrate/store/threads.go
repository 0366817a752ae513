package store

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/concord-dev/concord/workers"
)

// Threads run calls at the same time. A run has goroutines; the simulator, which has a single
// one, has its own.
type Threads interface {
	// Each calls f with every number below n, several at a time, and returns when all calls have
	// returned, with the first error. The context of the others has ended then.
	Each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error
	// NewLock returns a lock that such a call may hold while it waits.
	NewLock() sync.Locker
}

// goroutines are Threads of as many goroutines as the semaphore lets go.
type goroutines struct {
	slots *semaphore.Weighted
	one   bool // there is a single slot: no goroutine is needed
}

func newGoroutines(n int) goroutines {
	return goroutines{slots: semaphore.NewWeighted(int64(n)), one: n == 1}
}

// Each implements Threads.
func (g goroutines) Each(ctx context.Context, n int, f func(context.Context, int) error) error {
	if g.one {
		for i := range n {
			if err := f(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		if err := g.slots.Acquire(ctx, 1); err != nil {
			// A call has failed, which is the group's error, or ctx has ended.
			group.Go(func() error { return err })
			break
		}
		group.Go(func() error {
			defer g.slots.Release(1)
			return workers.Do(ctx, "rewrite", func() error { return f(ctx, i) })
		})
	}
	return group.Wait()
}

// NewLock implements Threads.
func (goroutines) NewLock() sync.Locker { return &sync.Mutex{} }
