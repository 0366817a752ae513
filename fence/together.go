package fence

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// together makes calls for many callers: those that come while one is under way are made by
// the next one, together. In is what one of them asks, Out what it is answered.
type together[In, Out any] struct {
	// fits says whether one more can be made together with these, of which there is at least
	// one.
	fits func(batch []In, next In) bool
	// make makes some of them at once and returns as many answers, in order.
	make func(ctx context.Context, batch []In) ([]Out, error)

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

// call waits for its answer. If ctx ends before, nothing is known of what was asked for.
func (t *together[In, Out]) call(ctx context.Context, in In) (Out, error) {
	one := &call[In, Out]{ctx: ctx, in: in, done: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, one)
	if !t.busy {
		t.busy = true
		go t.run()
	}
	t.mu.Unlock()
	select {
	case <-one.done:
		return one.out, one.err
	case <-ctx.Done():
		var none Out
		return none, ctx.Err()
	}
}

// run goes on as long as somebody waits.
func (t *together[In, Out]) run() {
	for batch, ins := t.next(); len(batch) > 0; batch, ins = t.next() {
		t.answer(batch, ins)
	}
}

// next takes those who have waited longest, as many as fit. Whoever has given up meanwhile
// is left out.
func (t *together[In, Out]) next() (batch []*call[In, Out], ins []In) {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := 0
	for _, one := range t.waiting {
		if one.ctx.Err() == nil {
			if len(batch) > 0 && !t.fits(ins, one.in) {
				break
			}
			batch, ins = append(batch, one), append(ins, one.in)
		}
		taken++
	}
	t.waiting = t.waiting[taken:]
	t.busy = len(batch) > 0
	return batch, ins
}

// answer serves a batch. It is given up when all its callers have given up.
func (t *together[In, Out]) answer(batch []*call[In, Out], ins []In) {
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
	outs, err := t.make(ctx, ins)
	if err == nil && len(outs) != len(batch) {
		err = fmt.Errorf("etcd answered %d of %d operations", len(outs), len(batch))
	}
	for i, one := range batch {
		if one.err = err; err == nil {
			one.out = outs[i]
		}
		close(one.done)
	}
}
