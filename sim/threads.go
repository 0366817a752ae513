package sim

import (
	"context"
	"sync"

	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/sim/script"
)

// threads has the transactions of a rewrite under way at once, each as a task of its own, so
// that they arrive and are answered in any order.
type threads struct{ p *Process }

var _ migratestore.Threads = threads{}

// Each implements migratestore.Threads.
func (t threads) Each(ctx context.Context, n int, f func(context.Context, int) error) (failed error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := t.p
	rewrites, next, running := p.w.current, 0, 0
	for r := script.Putting1; r < script.Roles && int(r-script.Putting1) < min(n, p.w.config.Under); r++ {
		running++
		put := p.spawn(r, rewrites.what, func() error {
			for next < n && failed == nil {
				i := next
				next++
				if err := f(ctx, i); err != nil && failed == nil {
					failed = err
					cancel()
				}
			}
			running--
			return failed
		})
		put.id, put.began = rewrites.id, rewrites.began
		p.w.resume(put)
	}
	p.await(func() bool { return running == 0 })
	return failed
}

// NewLock implements migratestore.Threads.
func (t threads) NewLock() sync.Locker { return &lock{p: t.p} }

// lock is a lock that tasks wait for as for an answer.
type lock struct {
	p    *Process
	held bool
}

// Lock implements sync.Locker.
func (l *lock) Lock() {
	l.p.await(func() bool { return !l.held })
	l.held = true
}

// Unlock implements sync.Locker.
func (l *lock) Unlock() { l.held = false }
