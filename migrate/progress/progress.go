// Package progress says how far several workers are together, and tells one listener.
package progress

import "sync"

// Teller calls a listener with how far something is, one call at a time. A worker that
// has something to tell while a call takes its time goes on: it is told in the next call.
type Teller[T any] struct {
	now  func() T
	told func(T)

	mu sync.Mutex // guards the fields below
	// telling says that told is being called, and untold that there is more to tell.
	telling, untold bool
}

// NewTeller tells the listener told what now returns. Both may take locks of their own and
// are called by one goroutine at a time. A nil told is not called.
func NewTeller[T any](now func() T, told func(T)) *Teller[T] {
	if told == nil {
		told = func(T) {}
	}
	return &Teller[T]{now: now, told: told}
}

// Tell has the listener told of everything up to now: by this call or, if another one is
// telling, by that one after the listener's call under way. A panic of the listener goes through
// Tell, and nothing is told after it.
func (t *Teller[T]) Tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.untold = true
	if t.telling {
		return
	}
	for t.telling = true; t.untold; {
		t.untold = false
		t.call()
	}
	t.telling = false
}

// call tells once without mu, which is held again afterwards, even after a panic.
func (t *Teller[T]) call() {
	t.mu.Unlock()
	defer t.mu.Lock()
	t.told(t.now())
}
