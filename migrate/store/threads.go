package store

import (
	"context"
	"sync"

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

// goroutines are Threads that take calls from a channel. They live as long as the run: a new one
// for each call would have to grow its stack each time, which takes longer than all else that the
// engine does for a transaction. A nil channel stands for the calling goroutine.
type goroutines chan func()

func newGoroutines(n int) goroutines {
	if n == 1 {
		return nil
	}
	calls := make(goroutines)
	for range n {
		go func() {
			for call := range calls {
				call()
			}
		}()
	}
	return calls
}

// end ends the goroutines.
func (g goroutines) end() {
	if g != nil {
		close(g)
	}
}

// Each implements Threads.
func (g goroutines) Each(ctx context.Context, n int, f func(context.Context, int) error) error {
	if g == nil {
		for i := range n {
			if err := f(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	var calls sync.WaitGroup
	for i := range n {
		calls.Add(1)
		call := func() {
			defer calls.Done()
			if err := workers.Do(ctx, "rewrite", func() error { return f(ctx, i) }); err != nil {
				failed(err)
			}
		}
		select {
		case g <- call:
		case <-ctx.Done():
			calls.Done()
		}
	}
	calls.Wait()
	return context.Cause(ctx)
}

// NewLock implements Threads.
func (goroutines) NewLock() sync.Locker { return &sync.Mutex{} }
