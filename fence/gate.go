package fence

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// maxHold is how long a batch waits for watches that start before it.
const maxHold = 100 * time.Millisecond

// gate lets watches start between two batches: what a watch cache knows in the middle of
// one is neither the state before nor the state after it. A start that cannot wait may
// also go ahead, and look at seq before and after.
type gate struct {
	clock clock.Clock
	// seq is odd while the cache is in the middle of a batch, and grows with each.
	seq atomic.Uint64

	mu sync.Mutex
	// window has those who start between the last batch and the next one.
	window *window
	// closing says that the next batch waits for the window to empty.
	closing bool
	// queue waits for the next window.
	queue []chan *window
	// patient is when a batch may wait again: of any time, at most half.
	patient time.Time
}

// window is a time between two batches.
type window struct {
	gate   *gate
	inside int
	// empty is made by who waits for inside to be 0.
	empty chan struct{}
}

func newGate(c clock.Clock) *gate {
	g := &gate{clock: c}
	g.window = &window{gate: g}
	return g
}

// middle says whether the cache is in the middle of a batch.
func (g *gate) middle() bool { return g.seq.Load()%2 == 1 }

// enter waits for a window and is in it then; the caller leaves it soon. It returns nil if
// ctx ends or the timer fires before.
func (g *gate) enter(ctx context.Context, timeout <-chan time.Time) *window {
	g.mu.Lock()
	if !g.middle() && !g.closing {
		defer g.mu.Unlock()
		g.window.inside++
		return g.window
	}
	granted := make(chan *window, 1)
	g.queue = append(g.queue, granted)
	g.mu.Unlock()
	select {
	case w := <-granted:
		return w
	case <-ctx.Done():
	case <-timeout:
	}
	g.mu.Lock()
	for i, other := range g.queue {
		if other == granted {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			g.mu.Unlock()
			return nil
		}
	}
	g.mu.Unlock()
	(<-granted).leave()
	return nil
}

// leave ends what enter began.
func (w *window) leave() {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	w.inside--
	if w.inside == 0 && w.empty != nil {
		close(w.empty)
		w.empty = nil
	}
}

// begin waits for the window to empty, but not for long or all the time, and begins a batch. Those who
// are in the window even then find that seq has changed. It begins none if stop is closed.
func (g *gate) begin(stop <-chan struct{}) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if begun := g.clock.Now(); g.window.inside > 0 && !begun.Before(g.patient) {
		if !g.emptied(stop) {
			return false
		}
		now := g.clock.Now()
		g.patient = now.Add(now.Sub(begun))
	}
	g.window = &window{gate: g}
	g.seq.Add(1)
	return true
}

// emptied is called with mu, and false says that stop is closed.
func (g *gate) emptied(stop <-chan struct{}) bool {
	empty := make(chan struct{})
	g.window.empty, g.closing = empty, true
	g.mu.Unlock()
	timer := g.clock.NewTimer(maxHold)
	defer timer.Stop()
	stopped := false
	select {
	case <-empty:
	case <-timer.C():
	case <-stop:
		stopped = true
	}
	g.mu.Lock()
	g.window.empty, g.closing = nil, false
	if stopped {
		g.open()
	}
	return !stopped
}

// end ends a batch, if there is one.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.middle() {
		return
	}
	g.seq.Add(1)
	g.open()
}

// open is called with mu, between two batches.
func (g *gate) open() {
	for _, granted := range g.queue {
		g.window.inside++
		granted <- g.window
	}
	g.queue = nil
}
