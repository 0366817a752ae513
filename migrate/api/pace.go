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
// were taken (slow start, additive increase, multiplicative decrease). A gentle one also grows and
// shrinks by how long patches take.
// Invariant: 1 <= limit <= most.
type window struct {
	limit, most float64
	// cut is when it was last halved, or when a gentle one shrank for the first time.
	cut time.Time
	// gentle is nil if only the server's refusals bound the window.
	gentle *gentle
}

// taken returns the window after a successful patch that took this long.
func (w window) taken(now time.Time, took time.Duration) window {
	grows := 1.0
	if w.gentle != nil {
		next := w.gentle.after(now, took)
		w.gentle, grows = &next, next.grows(w.limit)
		if grows < 0 && w.cut.IsZero() {
			w.cut = now
		}
	}
	step := 1.0
	if !w.cut.IsZero() {
		step = 1 / w.limit
	}
	w.limit = max(1, min(w.most, w.limit+grows*step))
	return w
}

// now is how many patches may be under way.
func (w window) now() int {
	if w.gentle != nil && w.gentle.rests() {
		return 1
	}
	return int(w.limit)
}

// gentle knows how long patches take, and so how many of those under way only wait at the server for
// others, as clients' requests do then: a patch takes base where nothing waits, and usual now, so that
// of each limit under way limit*(1-base/usual) wait (TCP Vegas). Base is known from rests, in which one
// patch is under way (BBR).
type gentle struct {
	// most is by how much patches may be lengthened, if that is said; else mostQueued may wait.
	most        time.Duration
	base, usual time.Duration
	patches     int
	// shortest and resting are of this rest, which began at began: its shortest patch, and how long all of them took.
	shortest, resting time.Duration
	began             time.Time
}

const (
	// While fewer than leastQueued wait the window grows, and while more than mostQueued do it shrinks.
	leastQueued, mostQueued = 0.5, 1.0
	// smooth is how much of usual is kept after a patch.
	smooth = 0.9
	// The first rested of restEvery patches are a rest. A rest ends earlier when it has taken longestRest and
	// leastRested patches: where each takes seconds, as behind a slow webhook, the others would wait for minutes.
	rested, restEvery = 20, 1000
	leastRested       = 2
	longestRest       = 5 * time.Second
)

func (g gentle) rests() bool { return g.patches%restEvery < rested }

// after returns what is known after a patch that ended now. A rest counts only patches that began in it: others ran beside
// more.
func (g gentle) after(now time.Time, took time.Duration) gentle {
	if !g.rests() {
		g.base, g.usual = min(g.base, took), time.Duration(smooth*float64(g.usual)+(1-smooth)*float64(took))
		if g.patches++; g.rests() {
			g.began = now
		}
		return g
	}
	if now.Add(-took).Before(g.began) {
		return g
	}
	if g.patches%restEvery == 0 {
		g.shortest, g.resting = took, 0
	}
	g.shortest, g.resting = min(g.shortest, took), g.resting+took
	g.patches++
	if done := g.patches % restEvery; done >= leastRested && g.resting >= longestRest {
		g.patches += rested - done
	}
	if !g.rests() {
		g.base, g.usual = g.shortest, max(g.usual, g.shortest)
	}
	return g
}

// grows is 1 if more may be under way, -1 if less should be.
func (g gentle) grows(limit float64) float64 {
	if g.rests() {
		return 0
	}
	waiting, least, most := limit*(1-float64(g.base)/float64(max(g.usual, 1))), leastQueued, mostQueued
	if g.most > 0 {
		waiting, least, most = float64(g.usual-g.base), 0.5*float64(g.most), float64(g.most)
	}
	switch {
	case waiting < least:
		return 1
	case waiting > most:
		return -1
	}
	return 0
}

// throttled returns the window after the server was too busy for a patch that began at this time. A patch that was
// under way when the window was last halved is no news.
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
	// free has something in it when a patch may be able to begin. The caller that takes it looks.
	free chan struct{}

	mu     sync.Mutex
	window window
	under  int // patches under way
	// closed is until when the server wants none.
	closed time.Time
}

func newTurnstile(o Options) *turnstile {
	t := &turnstile{
		clock: o.Clock, pacer: o.Pacer, free: make(chan struct{}, 1),
		window: window{limit: float64(min(firstParallel, o.MaxParallel)), most: float64(o.MaxParallel)},
	}
	if o.Gentle {
		t.window.limit, t.window.gentle = 1, &gentle{most: o.MaxAdded}
	}
	return t
}

// Turns paces requests that accompany a run, such as those of a proof, in the same way as the patches of a run. Each
// request calls enter, which waits until it may begin, and passes its result to done.
func Turns(o Options) (enter func(context.Context) (done func(error), err error)) {
	t := newTurnstile(o.withDefaults())
	return func(ctx context.Context) (func(error), error) {
		begun, err := t.enter(ctx)
		return func(err error) { t.leave(begun, judge(err)) }, err
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
	if closed = t.closed.Sub(now); closed > 0 || t.under >= t.window.now() {
		return time.Time{}, closed, false
	}
	if t.under++; t.under < t.window.now() {
		t.nudge()
	}
	return now, 0, true
}

// nudge wakes one of the waiting patches.
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
	now, bounding := t.clock.Now(), 2*t.under >= t.window.now()
	t.under--
	switch v.answer {
	case written, refused:
		if bounding { // else it says nothing of how many more the server would take
			t.window = t.window.taken(now, now.Sub(begun))
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

// patience runs out when no request was answered for too long. An answer that refuses an object counts as one.
type patience struct {
	bound time.Duration
	// forget is the time without a failure after which the server, webhook or plugin that it
	// waits for counts as back; never if 0.
	// A caller that has waited long asks again each maxBackoff.
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
