package api

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

// firstParallel is how many patches are under way at the beginning.
const firstParallel = 8

// window is how many patches may be under way: one more after each that the server took, if
// half of them were, and half of them after one was not; from then on one more only after as many as there may be
// were taken (slow start, additive increase, multiplicative decrease).
// Invariant: 1 <= limit <= most.
type window struct {
	limit, most float64
	// cut is when it was last halved.
	cut time.Time
}

// taken is the window after a patch that the server took.
func (w window) taken() window {
	step := 1.0
	if !w.cut.IsZero() {
		step = 1 / w.limit
	}
	w.limit = min(w.most, w.limit+step)
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

// turnstile lets patches through.
type turnstile struct {
	clock clock.WithTicker
	pacer *pace.Pacer
	// free has something in it when a patch may be able to begin. Who takes it looks.
	free chan struct{}

	mu     sync.Mutex
	window window
	under  int // patches under way
	// closed is until when the server wants none.
	closed time.Time
}

func newTurnstile(o Options) *turnstile {
	return &turnstile{
		clock: o.Clock, pacer: o.Pacer, free: make(chan struct{}, 1),
		window: window{limit: float64(min(firstParallel, o.MaxParallel)), most: float64(o.MaxParallel)},
	}
}

// enter waits until a patch may begin, and says when it did.
func (t *turnstile) enter(ctx context.Context) (begun time.Time, err error) {
	if _, err := t.pacer.Admit(ctx, 0); err != nil { // metadata do not tell how large an object is
		return time.Time{}, err
	}
	for {
		begun, closed, ok := t.begin()
		if ok {
			return begun, ctx.Err()
		}
		if err := waitOr(ctx, t.clock, closed, t.free); err != nil {
			return time.Time{}, err
		}
	}
}

// begin counts one more patch if it may begin, and else says for how long the server wants none,
// if it has said so.
func (t *turnstile) begin() (begun time.Time, closed time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if closed = t.closed.Sub(now); closed > 0 || t.under >= int(t.window.limit) {
		return time.Time{}, closed, false
	}
	if t.under++; t.under < int(t.window.limit) {
		t.nudge()
	}
	return now, 0, true
}

// nudge has one look who waits.
func (t *turnstile) nudge() {
	select {
	case t.free <- struct{}{}:
	default: // one will
	}
}

// leave ends a patch.
func (t *turnstile) leave(begun time.Time, v verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, bounding := t.clock.Now(), 2*t.under >= int(t.window.limit)
	t.under--
	switch v.answer {
	case written, refused:
		if bounding { // else it says nothing of what more the server would take
			t.window = t.window.taken()
		}
	case busy:
		t.window = t.window.throttled(begun, now)
	}
	if until := now.Add(v.after); until.After(t.closed) {
		t.closed = until
	}
	t.nudge()
}

// waitOr waits until a time has passed, if it is positive, or or has something.
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
