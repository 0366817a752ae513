package pace

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Pacer admits the objects of one migration. A nil one admits all.
type Pacer struct {
	bounds Bounds
	clock  clock.Clock
	look   func() Seen
	queue  chan struct{} // has the caller that waits for the next turn

	mu      sync.Mutex
	state   State
	decided time.Time // when state was
	wrote   float64   // objects since then
	filled  time.Time // when due was added to
	due     float64   // how many objects may go; below 0 if more have
}

// New returns a Pacer, and the function that ends it. Nil clients are none.
func New(b Bounds, clients Clients, c clock.Clock) (p *Pacer, stop func()) {
	p, stop = &Pacer{bounds: b, clock: c, queue: make(chan struct{}, 1), look: func() Seen { return Seen{} }}, func() {}
	if clients != nil {
		p.look, stop = clients.Watch()
	}
	p.decide(c.Now())
	return p, stop
}

// decide is called with mu.
func (p *Pacer) decide(now time.Time) {
	if since := now.Sub(p.decided); since >= tick {
		before := p.state.Rate
		p.state = p.state.Next(p.bounds, p.look(), p.wrote/since.Seconds())
		p.decided, p.wrote = now, 0
		if before == 0 || math.IsInf(before, 1) { // until now nothing fell due
			p.filled = now.Add(-burst)
		}
	}
}

// Rate is how many objects per second are admitted between rests, +Inf if nothing bounds it.
func (p *Pacer) Rate() float64 {
	if p == nil {
		return math.Inf(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide(p.clock.Now())
	return max(p.state.Rate, p.state.going)
}

// Admit waits until an object of a size may be written, and says whether it had to.
func (p *Pacer) Admit(ctx context.Context, bytes int) (waited bool, err error) {
	objects := max(1, float64(bytes)/unit)
	if p == nil || p.turn(objects) <= 0 {
		return false, ctx.Err()
	}
	select {
	case p.queue <- struct{}{}:
		defer func() { <-p.queue }()
	case <-ctx.Done():
		return true, ctx.Err()
	}
	for after := p.turn(objects); after > 0; after = p.turn(objects) {
		select {
		case <-p.clock.After(after): // soon
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	return true, ctx.Err()
}

// turn takes a turn if there is one, and otherwise returns after how long to ask again. Objects go in bursts, because
// etcd commits simultaneous writes together: writing one by one would make the disk sync for each, and clients' writes
// wait for it.
func (p *Pacer) turn(objects float64) (after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.decide(now)
	if !math.IsInf(p.state.Rate, 1) {
		if since := now.Sub(p.filled); since >= burst {
			most := 3 * burst // nobody may have asked for a while
			if len(p.queue) > 0 {
				most = tick // somebody did, and the timer was late
			}
			p.due = min(p.due+p.state.Rate*since.Seconds(), p.state.Rate*most.Seconds())
			p.filled = now
		}
		if p.due <= 0 {
			return burst - now.Sub(p.filled)
		}
		p.due -= objects
	}
	p.wrote += objects
	return 0
}
