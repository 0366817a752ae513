// Package coalesce makes one call of many that come at once.
package coalesce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/concord-dev/concord/workers"
)

// Calls makes calls for many callers: those that come while one is under way are made by
// the next one, together. In is the question of one of them, Out the answer to it.
type Calls[In, Out any] struct {
	// Fits says whether one more can be made together with these, of which there is at least
	// one.
	Fits func(batch []In, next In) bool
	// Make makes some of them at once and returns as many answers, in order.
	Make func(ctx context.Context, batch []In) ([]Out, error)

	mu      sync.Mutex
	waiting []*call[In, Out]
	busy    bool
}

type call[In, Out any] struct {
	ctx  context.Context // the caller's
	in   In
	done chan struct{}
	// out and err are set before done is closed.
	out Out
	err error
}

// Do waits for its answer. If ctx ends before, nothing is known of what was asked for.
func (c *Calls[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	one := &call[In, Out]{ctx: ctx, in: in, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, one)
	if !c.busy {
		c.busy = true
		go c.run()
	}
	c.mu.Unlock()
	select {
	case <-one.done:
		return one.out, one.err
	case <-ctx.Done():
		var none Out
		return none, ctx.Err()
	}
}

// Waiting is how many callers wait for the next call.
func (c *Calls[In, Out]) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// run goes on as long as somebody waits.
func (c *Calls[In, Out]) run() {
	for batch, ins := c.next(); len(batch) > 0; batch, ins = c.next() {
		c.answer(batch, ins)
	}
}

// next takes the calls that have waited longest, as many as fit. Those whose callers have given
// up meanwhile are left out.
func (c *Calls[In, Out]) next() (batch []*call[In, Out], ins []In) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := 0
	for _, one := range c.waiting {
		if one.ctx.Err() == nil {
			if len(batch) > 0 && !c.Fits(ins, one.in) {
				break
			}
			batch, ins = append(batch, one), append(ins, one.in)
		}
		taken++
	}
	clear(c.waiting[:taken]) // the array behind a slice lives on, and with it all that it holds
	c.waiting = c.waiting[taken:]
	c.busy = len(batch) > 0
	return batch, ins
}

// answer serves a batch. It is given up when all its callers have given up.
func (c *Calls[In, Out]) answer(batch []*call[In, Out], ins []In) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(batch)))
	for _, one := range batch {
		defer context.AfterFunc(one.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	var outs []Out
	err := workers.Do(ctx, "coalesce", func() (err error) {
		outs, err = c.Make(ctx, ins)
		return err
	})
	if err == nil && len(outs) != len(batch) {
		err = fmt.Errorf("%d of %d calls that were made together were answered", len(outs), len(batch))
	}
	for i, one := range batch {
		if one.err = err; err == nil {
			one.out = outs[i]
		}
		close(one.done)
	}
}
