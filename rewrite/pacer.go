package rewrite

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Yield says how a run gives way to whoever else uses the store and the machine.
type Yield struct {
	// MaxAddedLatency is by how much the run may lengthen a small linearizable read of the
	// store while clients are being served: the measure of what it adds to their requests.
	// The latency without it is measured in between, while it rests. Whatever it adds, about
	// 200 objects per second are written, or 4 MiB of larger ones, or 20 objects, if
	// MaxPerSecond is no less. 0: the run does not look at clients and goes as fast as it can.
	MaxAddedLatency time.Duration
	// Busy says whether clients are being served now. The run also finds that they are by
	// the store's revision: transactions other than its own. Nil: by that only.
	Busy func() bool
	// MaxPerSecond bounds the objects written per second, whether or not clients are served.
	// 0: no bound.
	MaxPerSecond int
}

// Validate refuses negative bounds.
func (y Yield) Validate() error {
	if y.MaxAddedLatency < 0 || y.MaxPerSecond < 0 {
		return fmt.Errorf("a rewrite cannot add %s of latency or write %d objects per second", y.MaxAddedLatency, y.MaxPerSecond)
	}
	return nil
}

// gives says whether clients are being served that a run looks at.
func (y Yield) gives() bool { return y.MaxAddedLatency > 0 && y.Busy != nil && y.Busy() }

const (
	// tick is how often the rate is decided on, and probeEvery the time between two probes.
	tick       = 100 * time.Millisecond
	probeEvery = 5 * time.Millisecond
	// restEvery: of so many ticks while clients are served the first is a rest, and at the
	// beginning firstRests are. What the calmest of the last keptRests showed is taken for
	// the latency without the run: in any of them something else may have disturbed.
	restEvery, firstRests, keptRests = 12, 2, 3
	// slice is how long a transaction may be written for at the current rate: short ones
	// lengthen few requests.
	slice = 5 * time.Millisecond
	// caughtUp is how many objects may be in a transaction although that is longer, if they were
	// to go before it could begin: where transactions take long, there are not many of them.
	caughtUp = 8
	// slowest is the rate, in objects per second, that is kept whatever it adds: a migration
	// has to end, also on a machine where latencies are high for other reasons, and a million
	// objects within two hours. Objects that are so large that this were more than slowestBytes
	// per second may be rewritten at fewer, down to step, by which a rate grows at the least.
	// How large they are the last written say, of which there are about sizesOf.
	slowest, slowestBytes, step, sizesOf = 200, 4 << 20, 20, 100
	// othersPerSecond is how many transactions of others mean that clients are served.
	// Servers that idle renew Leases, each of them less than once a second.
	othersPerSecond = 10
)

// pace is what is decided from tick to tick while clients are served.
type pace struct {
	// rate is in objects per second.
	rate float64
	// knee is the rate that was too fast last, or nearly; 0 if none was yet.
	knee float64
	// draining says that the rate was lowered in the last tick: what that shows is still
	// of before. near says that it added more than half of what it may.
	draining, near bool
}

// next decides the rate of the next tick, which is least or more. added is the latency that the
// run added in the last one, in which it wrote achieved objects per second.
func (p pace) next(added, target time.Duration, achieved, least float64) pace {
	reached := min(p.rate, max(achieved, least))
	switch {
	case p.draining:
		p.draining = false
	case added > target:
		// As fast as it was, and not as it was allowed to be, it was too fast.
		p = pace{rate: 0.7 * reached, knee: max(reached, p.knee/2), draining: true}
		if added > 2*target {
			p.rate /= 2
		}
	case achieved < p.rate/2:
		// It does not make use of what it may: more would show nothing.
	case p.knee == 0 && added > target/2:
		if p.near { // twice is no chance
			p.knee = reached
		}
		p.near = true
	case p.rate < p.knee/2 || p.knee == 0:
		p.rate, p.near = 2*p.rate, false
	default:
		p.rate += max(step, 0.05*p.rate)
	}
	p.rate = max(p.rate, least)
	return p
}

// crowd are the runs of an Engine that yield: what one of them writes is no client's to another.
type crowd struct {
	// written are their transactions, workers who may have one under way.
	written, workers atomic.Int64
}

// pacer lets objects through at a rate.
type pacer struct {
	yield   Yield
	workers int
	clock   clock.Clock
	crowd   *crowd

	mu sync.Mutex
	// rate is in objects per second: 0 while resting, +Inf when nothing bounds it.
	rate    float64
	changed chan struct{} // closed and replaced whenever rate changes
	// next is when the next object may go, last when so many went.
	next, last time.Time
	went       int
	// written counts objects, newest is the store's revision.
	written, newest int64
	// lately are the objects that were written last, most of them the last sizesOf, and
	// latelyBytes their values' sizes together.
	lately, latelyBytes float64
}

func newPacer(y Yield, workers int, c clock.Clock, among *crowd) *pacer {
	p := &pacer{yield: y, workers: workers, clock: c, crowd: among, changed: make(chan struct{})}
	p.rate = p.bounded(math.Inf(1))
	return p
}

// bounded is a rate within the bound that always holds.
func (p *pacer) bounded(rate float64) float64 {
	if most := p.yield.MaxPerSecond; most > 0 {
		return min(rate, float64(most))
	}
	return rate
}

func (p *pacer) set(rate float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rate = p.bounded(rate); rate == p.rate {
		return
	}
	p.rate, p.next = rate, p.due(rate)
	close(p.changed)
	p.changed = make(chan struct{})
}

// due is when the next object may go at a new rate, after those that went last.
func (p *pacer) due(rate float64) time.Time {
	if p.last.IsZero() || rate == 0 || math.IsInf(rate, 1) {
		return time.Time{}
	}
	went := min(float64(p.went), max(1, rate*slice.Seconds()))
	return p.last.Add(time.Duration(went / rate * float64(time.Second)))
}

// admit waits until objects may be written, and says how many of the wanted.
func (p *pacer) admit(ctx context.Context, wanted int) (int, error) {
	for {
		n, after, changed := p.reserve(wanted)
		if n > 0 && after <= 0 {
			p.leave(n)
			return n, ctx.Err()
		}
		moved, err := waitOr(ctx, p.clock, after, changed)
		if err != nil {
			return 0, err
		}
		if n > 0 && !moved {
			p.leave(n)
			return n, nil
		}
	}
}

// leave notes that so many objects go now.
func (p *pacer) leave(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.went = p.clock.Now(), n
}

// reserve returns how many objects may go, and how long from now; none while resting.
func (p *pacer) reserve(wanted int) (n int, after time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case math.IsInf(p.rate, 1):
		return wanted, 0, p.changed
	case p.rate == 0:
		return 0, time.Hour, p.changed
	}
	now := p.clock.Now()
	if p.next.IsZero() {
		p.next = now
	}
	missed := min(caughtUp, int(p.rate*min(now.Sub(p.next), time.Second).Seconds()))
	n = max(1, min(wanted, max(missed, int(p.rate*slice.Seconds()))))
	after = max(0, p.next.Sub(now))
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	if p.next.Before(now) {
		p.next = now
	}
	return n, after, p.changed
}

// minAhead is how many keys are read at a time at the least.
const minAhead = 8

// ahead bounds how many keys are read at a time to what may be written in a tick: a long
// read lengthens requests, too, and what all workers have under way would have to be looked
// at again after a crash.
func (p *pacer) ahead(keys int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if math.IsInf(p.rate, 1) {
		return keys
	}
	return min(keys, max(minAhead, int(p.rate*tick.Seconds())))
}

// least is the rate that is kept for objects as large as those that were written last.
func (p *pacer) least() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latelyBytes == 0 {
		return step
	}
	return min(slowest, max(step, slowestBytes*p.lately/p.latelyBytes))
}

// wrote counts a transaction.
func (p *pacer) wrote(objects, bytes int, revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written += int64(objects)
	if p.lately >= sizesOf { // the older half as much
		p.lately, p.latelyBytes = p.lately/2, p.latelyBytes/2
	}
	p.lately += float64(objects)
	p.latelyBytes += float64(bytes)
	p.crowd.written.Add(1)
	p.newest = max(p.newest, revision)
}

func (p *pacer) saw(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = max(p.newest, revision)
}

// window remembers, by tick, what the transactions of others in the last second are found
// by: those of the engine, and the store's revision, which every transaction raises by one.
type window struct {
	ticks []struct{ own, newest int64 }
}

// add takes in a tick, and returns how many transactions of others there were. It may be
// wrong by those of the engine that are under way.
func (w *window) add(own, newest int64) int64 {
	if newest == 0 {
		return 0
	}
	w.ticks = append(w.ticks, struct{ own, newest int64 }{own, newest})
	if len(w.ticks) > int(time.Second/tick)+1 {
		w.ticks = w.ticks[1:]
	}
	return newest - w.ticks[0].newest - (own - w.ticks[0].own)
}

// govern decides the rate, tick by tick, until ctx ends.
func (p *pacer) govern(ctx context.Context, probe func(context.Context) (int64, error)) {
	p.crowd.workers.Add(int64(p.workers))
	defer p.crowd.workers.Add(-int64(p.workers))
	var seen window
	var current pace
	var rests []time.Duration // what probes took without the run, oldest first
	for serving := 0; ctx.Err() == nil; {
		p.mu.Lock()
		own, newest, before := p.crowd.written.Load(), p.newest, p.written
		p.mu.Unlock()
		others := seen.add(own, newest)
		if others < othersPerSecond+p.crowd.workers.Load() && (p.yield.Busy == nil || !p.yield.Busy()) {
			serving = 0
			p.set(math.Inf(1))
			_ = wait(ctx, p.clock, tick)
			continue
		}
		if serving == 0 {
			current, rests = pace{rate: max(5*step, p.least())}, nil
		}
		resting := serving < firstRests || serving%restEvery == 0
		if serving++; resting {
			p.set(0)
		} else {
			p.set(current.rate)
		}
		began := p.clock.Now()
		latency := p.measure(ctx, probe)
		seconds := p.clock.Since(began).Seconds()
		if resting {
			rests = append(rests[max(0, len(rests)+1-keptRests):], latency)
			continue
		}
		p.mu.Lock()
		achieved := float64(p.written-before) / max(seconds, tick.Seconds())
		p.mu.Unlock()
		current = current.next(latency-slices.Min(rests), p.yield.MaxAddedLatency, achieved, p.least())
	}
}

// measure probes for a tick and returns what nine of ten probes took at most: the slowest
// requests are those that clients notice.
func (p *pacer) measure(ctx context.Context, probe func(context.Context) (int64, error)) time.Duration {
	var took []time.Duration
	for end := p.clock.Now().Add(tick); ctx.Err() == nil && p.clock.Now().Before(end); {
		began := p.clock.Now()
		revision, err := probe(ctx)
		took = append(took, p.clock.Since(began))
		if err == nil {
			p.saw(revision)
		}
		_ = wait(ctx, p.clock, probeEvery)
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*9/10]
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, c clock.Clock, d time.Duration) error {
	_, err := waitOr(ctx, c, d, nil)
	return err
}

// waitOr also ends when or is closed, and says so.
func waitOr(ctx context.Context, c clock.Clock, d time.Duration, or <-chan struct{}) (closed bool, err error) {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return false, nil
	case <-or:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
