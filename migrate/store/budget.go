package store

import (
	"context"
	"sync"
)

// budget limits the bytes of values that a run holds, from before a page is read until its values are written. Callers
// that need more than is left wait; a single value that is larger than the whole budget may pass alone. Invariant:
// held <= limit, except for such a value and for the bytes that grow counts.
type budget struct {
	limit int64

	mu         sync.Mutex
	held, peak int64
	freed      chan struct{} // closed and replaced whenever held falls
}

func newBudget(limit int) *budget {
	return &budget{limit: int64(limit), freed: make(chan struct{})}
}

// take waits until n more bytes may be held.
func (b *budget) take(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if b.held == 0 || b.held+n <= b.limit {
			b.add(n)
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// grow counts bytes that are held already; the next caller waits for them to go.
// n may be negative.
func (b *budget) grow(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(n)
	if n < 0 {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

func (b *budget) add(n int64) {
	b.held += n
	b.peak = max(b.peak, b.held)
}

func (b *budget) highest() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peak
}
