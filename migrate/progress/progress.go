// Package progress tracks how far several workers are together, and reports it to one listener.
package progress

import "sync"

// Teller reports progress to a listener, one call at a time. A worker with news does not wait for a call under way;
// its news is part of the next call.
type Teller[T any] struct {
	now  func() T
	told func(T)

	mu sync.Mutex // guards the fields below
	// telling says that the listener is being called, and untold that there is more to report.
	telling, untold bool
}

// NewTeller returns a Teller that calls told with the result of now. Both may take locks of their own; each is called
// by one goroutine at a time. A nil told is not called.
func NewTeller[T any](now func() T, told func(T)) *Teller[T] {
	if told == nil {
		told = func(T) {}
	}
	return &Teller[T]{now: now, told: told}
}

// Tell reports everything up to now to the listener: in this call or, if another one is under way, by that one
// afterwards. A panic of the listener passes through Tell, and nothing is reported after it.
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

// call reports once, without holding mu, which is held again afterwards, even after a panic.
func (t *Teller[T]) call() {
	t.mu.Unlock()
	defer t.mu.Lock()
	t.told(t.now())
}
