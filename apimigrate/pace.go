package apimigrate

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// firstParallel is how many patches are under way at the beginning.
const firstParallel = 8

// window is how many patches may be under way: one more after as many as there may be were
// taken, half of them after one was not (additive increase, multiplicative decrease).
// Invariant: 1 <= limit <= most.
type window struct {
	limit, most float64
	// cut is when it was last halved.
	cut time.Time
}

// taken is the window after a patch that the server took.
func (w window) taken() window {
	w.limit = min(w.most, w.limit+1/w.limit)
	return w
}

// throttled is the window after a patch begun at a time that the server was too busy for.
// One that was under way when the window was last halved says nothing new.
func (w window) throttled(begun, now time.Time) window {
	if !begun.Before(w.cut) {
		w.limit, w.cut = max(1, w.limit/2), now
	}
	return w
}

// gate lets patches through.
type gate struct {
	clock clock.WithTicker
	rate  *rate.Limiter

	mu     sync.Mutex
	window window
	under  int // patches under way
	// closed is until when the server wants none.
	closed  time.Time
	changed chan struct{} // closed and replaced whenever a patch ends
}

func newGate(o Options) *gate {
	limit := rate.Inf
	if o.MaxPerSecond > 0 {
		limit = rate.Limit(o.MaxPerSecond)
	}
	return &gate{
		clock: o.Clock, rate: rate.NewLimiter(limit, 1), changed: make(chan struct{}),
		window: window{limit: float64(min(firstParallel, o.MaxParallel)), most: float64(o.MaxParallel)},
	}
}

// enter waits until a patch may begin, and says when it did.
func (g *gate) enter(ctx context.Context) (begun time.Time, err error) {
	if err := g.rate.Wait(ctx); err != nil {
		return time.Time{}, err
	}
	for {
		g.mu.Lock()
		now, changed := g.clock.Now(), g.changed
		closed := g.closed.Sub(now)
		if closed <= 0 && g.under < int(g.window.limit) {
			g.under++
			g.mu.Unlock()
			return now, ctx.Err()
		}
		g.mu.Unlock()
		if err := waitOr(ctx, g.clock, closed, changed); err != nil {
			return time.Time{}, err
		}
	}
}

// open waits for one that has entered until the server wants patches, and says when that was.
func (g *gate) open(ctx context.Context) (begun time.Time, err error) {
	for {
		g.mu.Lock()
		now := g.clock.Now()
		closed := g.closed.Sub(now)
		g.mu.Unlock()
		if closed <= 0 {
			return now, ctx.Err()
		}
		if err := waitOr(ctx, g.clock, closed, nil); err != nil {
			return time.Time{}, err
		}
	}
}

// leave ends a patch.
func (g *gate) leave(begun time.Time, v verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	g.under--
	switch v.answer {
	case written, refused:
		g.window = g.window.taken()
	case busy:
		g.window = g.window.throttled(begun, now)
	}
	if until := now.Add(v.after); until.After(g.closed) {
		g.closed = until
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// waitOr waits until a time has passed, if it is positive, or or is closed.
func waitOr(ctx context.Context, c clock.WithTicker, d time.Duration, or <-chan struct{}) error {
	var passed <-chan time.Time
	if d > 0 {
		timer := c.NewTimer(d)
		defer timer.Stop()
		passed = timer.C()
	}
	select {
	case <-passed:
	case <-or:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// patience ends when the server has given nobody an answer for too long.
type patience struct {
	bound time.Duration
	// forget is after how long without a failure what it waits for counts as back; never if 0.
	// Who has waited longest asks again each maxBackoff.
	forget time.Duration

	mu    sync.Mutex
	since time.Time // zero: it answers
	last  time.Time // that there was no answer
}

func (p *patience) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
}

// lasts takes in that there was no answer, and says whether to ask again.
func (p *patience) lasts(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() || p.forget > 0 && now.Sub(p.last) > p.forget {
		p.since = now
	}
	p.last = now
	return now.Sub(p.since) < p.bound
}
