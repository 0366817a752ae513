// Package turns has the requests that a server has admitted take turns while its CPUs are busy.
//
// Priority and fairness admits 600 requests at once by default, on any machine, and knows nothing of CPUs. On two cores an
// admitted request of a user with normal needs then shares them with hundreds of requests of a user that floods the server, and
// takes as many times longer. Here an admitted request begins at once if few others are under way, or if no goroutine waits
// for a CPU. Else it waits for its turn. Priority levels take turns, and so do the flows of each level, as priority and fairness
// defines them. Beside them as many turns again are for flows that have none, so that the only request of a user does not wait
// until one of another user's has ended.
//
// A turn ends with its request, when no goroutine waits for a CPU, or after a short time. So requests that wait for a webhook
// or for etcd keep no others from beginning while there are CPUs for them, and lists that compute for seconds keep others
// waiting for a short time each.
package turns

import (
	"context"
	"runtime/metrics"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/workers"
)

const (
	// longest is how long a turn lasts at most. Most requests take a tenth of it.
	longest = 50 * time.Millisecond
	// between is the time between two looks at the CPUs while requests wait.
	between = 2 * time.Millisecond
)

// Turns are the turns of a server's requests.
type Turns struct {
	// most is how many turns are taken at once, and mostFirst how many first ones of flows beside them.
	most, mostFirst int
	clock           clock.PassiveClock
	// later calls a function after a time.
	later func(time.Duration, func())
	// busy says whether goroutines wait for a CPU. It is called under the lock.
	busy func() bool

	mu sync.Mutex
	// taken are the turns that have begun, some of which have ended since.
	taken []*turn
	// under are those of taken that have not ended, without first ones, which first are.
	under, first int
	// flows are the turns that have not ended by level and flow.
	flows map[path]int
	// waiting are requests by priority level and flow; queued is how many they are.
	waiting rota
	queued  int
	// looking says that look is due.
	looking bool
}

// turn is the turn of a request.
type turn struct {
	// begun is closed when the turn begins; nil for one that began at once.
	begun chan struct{}
	began time.Time
	ended bool
	// path is empty for a request that began before it was classified.
	path path
	// first says that the flow had no turn.
	first bool
}

// path is a priority level and a flow.
type path struct{ level, flow string }

// New returns turns of which this many are taken at once while goroutines wait for a CPU, and as many first ones beside them.
func New(most int) *Turns {
	return &Turns{
		most: most, mostFirst: most,
		clock: clock.RealClock{},
		later: func(d time.Duration, f func()) {
			time.AfterFunc(d, func() { _ = workers.Do(context.Background(), "turns", func() error { f(); return nil }) })
		},
		busy: goroutinesWait(),
	}
}

// goroutinesWait returns a function that says whether goroutines wait for a CPU. It takes a tenth of a microsecond.
func goroutinesWait() func() bool {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	return func() bool {
		metrics.Read(sample)
		return sample[0].Value.Kind() == metrics.KindUint64 && sample[0].Value.Uint64() > 0
	}
}

// Begin begins a turn if it need not wait, and returns what ends it; nil if it has to wait.
func (t *Turns) Begin() (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queued > 0 || t.full() && t.busy() {
		return nil
	}
	mine := &turn{}
	t.begin(mine)
	return func() { t.end(mine) }
}

// Wait waits for the turn of a request of a flow, and returns what ends it. It returns nil if the context ends before it
// begins, and at once if this many requests of the flow wait already.
func (t *Turns) Wait(ctx context.Context, level, flow string, most int) (end func()) {
	mine := t.ask(level, flow, most)
	if mine == nil {
		return nil
	}
	select {
	case <-mine.begun:
	case <-ctx.Done():
		if t.leave(mine) {
			return nil
		}
	}
	return func() { t.end(mine) }
}

// ask has a turn wait for others, unless too many of its flow do.
func (t *Turns) ask(level, flow string, most int) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &turn{begun: make(chan struct{}), path: path{level, flow}}
	if !t.waiting.push(mine, most, level, flow) {
		return nil
	}
	t.queued++
	t.next()
	if t.queued > 0 && !t.looking {
		t.looking = true
		t.later(between, t.look)
	}
	return mine
}

// full says whether as many turns as may be are taken, and ends those that have lasted long enough.
func (t *Turns) full() bool {
	if t.under >= t.most {
		t.lapse(false)
	}
	return t.under >= t.most
}

// lapse ends the turns that have lasted long enough, or all of them.
func (t *Turns) lapse(all bool) {
	now := t.clock.Now()
	for _, taken := range t.taken {
		if all || now.Sub(taken.began) >= longest {
			t.over(taken)
		}
	}
}

// leave takes a request out of those that wait, unless its turn has begun.
func (t *Turns) leave(mine *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !mine.began.IsZero() {
		return false
	}
	t.waiting.remove(mine, mine.path.level, mine.path.flow)
	t.queued--
	return true
}

func (t *Turns) end(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over(mine)
	t.next()
}

// look ends the turns that have lasted long enough: all of them if no goroutine waits for a CPU. It looks again
// while requests wait.
func (t *Turns) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looking = false
	t.lapse(!t.busy())
	t.next()
	if t.looking = t.queued > 0; t.looking {
		t.later(between, t.look)
	}
}

// next begins the turns of requests that wait, as many as there may be.
func (t *Turns) next() {
	if len(t.taken) > 2*(t.under+t.first)+64 {
		t.taken = slices.DeleteFunc(t.taken, func(taken *turn) bool { return taken.ended })
	}
	for t.queued > 0 && t.under < t.most {
		t.queued--
		t.begin(t.waiting.pop(all))
	}
	for t.queued > 0 && t.first < t.mostFirst {
		mine := t.waiting.pop(t.none)
		if mine == nil {
			return
		}
		t.queued--
		mine.first = true
		t.begin(mine)
	}
}

func all(*turn) bool { return true }

// none says that the flow of a turn has none.
func (t *Turns) none(of *turn) bool { return t.flows[of.path] == 0 }

func (t *Turns) begin(turn *turn) {
	turn.began = t.clock.Now()
	t.taken = append(t.taken, turn)
	t.count(turn, 1)
	if turn.begun != nil {
		close(turn.begun)
	}
}

func (t *Turns) over(turn *turn) {
	if !turn.ended {
		turn.ended = true
		t.count(turn, -1)
	}
}

func (t *Turns) count(turn *turn, by int) {
	if turn.first {
		t.first += by
	} else {
		t.under += by
	}
	if turn.path == (path{}) {
		return
	}
	if t.flows == nil {
		t.flows = map[path]int{}
	}
	if t.flows[turn.path] += by; t.flows[turn.path] == 0 {
		delete(t.flows, turn.path)
	}
}
