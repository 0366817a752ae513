package turns

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// requests are those of a test: what has begun, in this order, and how to end it.
type requests struct {
	turns *Turns
	clock *testclock.FakeClock
	busy  bool
	later func() // the next look
	begun []string
	asked map[string]*turn
}

// inQueue is how many requests of a flow may wait.
const inQueue = 3

func newRequests(most int) *requests {
	r := &requests{clock: testclock.NewFakeClock(time.Unix(0, 0)), busy: true, asked: map[string]*turn{}}
	r.turns = &Turns{most: most, clock: r.clock, later: func(_ time.Duration, f func()) { r.later = f }, busy: func() bool { return r.busy }}
	return r
}

// ask makes requests "level/flow/number".
func (r *requests) ask(names ...string) {
	for _, name := range names {
		path := strings.Split(name, "/")
		if mine := r.turns.ask(path[0], path[1], inQueue); mine != nil {
			r.asked[name] = mine
		}
	}
	r.note()
}

// note appends the requests whose turn has begun since.
func (r *requests) note() {
	var begun []string
	for name, t := range r.asked {
		if !t.began.IsZero() && !slices.Contains(r.begun, name) {
			begun = append(begun, name)
		}
	}
	slices.Sort(begun)
	r.begun = append(r.begun, begun...)
}

func (r *requests) end(name string) { r.turns.end(r.asked[name]); r.note() }

// pass lets time pass until the next look.
func (r *requests) pass(d time.Duration) {
	r.clock.Step(d)
	if look := r.later; look != nil {
		r.later = nil
		look()
	}
	r.note()
}

func (r *requests) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	if !slices.Equal(r.begun, want) {
		t.Errorf("%s these requests have begun: %v, want %v", when, r.begun, want)
	}
}

func TestFlowsTakeTurns(t *testing.T) {
	r := newRequests(1)
	r.ask("users/flood/1", "users/flood/2", "users/flood/3", "users/flood/4", "users/normal/1", "users/normal/2", "leases/scheduler/1")
	r.expect(t, "at first", "users/flood/1")
	for range 6 {
		r.end(r.begun[len(r.begun)-1])
	}
	r.expect(t, "one after the other", "users/flood/1",
		"users/flood/2", "leases/scheduler/1", "users/normal/1", "users/flood/3", "users/normal/2", "users/flood/4")
}

// TestFirstOfItsFlow: a flow without a turn does not wait for those of others.
func TestFirstOfItsFlow(t *testing.T) {
	r := newRequests(1)
	r.turns.mostFirst = 2
	r.ask("l/flood/1", "l/flood/2", "l/flood/3", "l/flood/4")
	want := []string{"l/flood/1"}
	r.expect(t, "of one flow", want...)
	r.ask("l/normal/1", "l/normal/2", "l/other/1")
	want = append(want, "l/normal/1", "l/other/1")
	r.expect(t, "of others", want...)
	r.ask("m/normal/1", "l/third/1")
	r.expect(t, "beside as many first ones as may be", want...)
	for _, step := range []struct{ end, begins string }{
		{"l/normal/1", "l/normal/2"},
		{"l/other/1", "m/normal/1"}, // the other level's, and not the same flow as normal/2
		{"l/flood/1", "l/flood/2"},
		{"m/normal/1", "l/third/1"},
		{"l/normal/2", ""},
	} {
		r.end(step.end)
		if step.begins != "" {
			want = append(want, step.begins)
		}
		r.expect(t, "after "+step.end, want...)
	}
	r.pass(longest)
	r.expect(t, "when those have lasted long", append(want, "l/flood/3")...)
	r.pass(longest)
	r.end("l/flood/4")
	if r.turns.first != 0 || r.turns.under != 0 || len(r.turns.flows) != 0 {
		t.Errorf("%d first ones and %d others of flows %v have a turn after all have ended", r.turns.first, r.turns.under, r.turns.flows)
	}
}

func TestAsManyAsMay(t *testing.T) {
	r := newRequests(2)
	r.ask("l/f/1", "l/f/2", "l/f/3", "l/f/4")
	r.expect(t, "at first", "l/f/1", "l/f/2")
	r.end("l/f/2")
	r.expect(t, "when one has ended", "l/f/1", "l/f/2", "l/f/3")
	r.pass(longest / 2)
	r.expect(t, "while others compute", "l/f/1", "l/f/2", "l/f/3")
	r.pass(longest / 2)
	r.expect(t, "when a request takes long", "l/f/1", "l/f/2", "l/f/3", "l/f/4")
	r.end("l/f/1") // its turn is over already
	r.ask("l/f/5")
	r.end("l/f/3")
	r.ask("l/f/6", "l/f/7")
	r.expect(t, "with two under way", "l/f/1", "l/f/2", "l/f/3", "l/f/4", "l/f/5")
}

// TestNobodyWaitsForACPU has requests begin that would else wait for others that wait for a webhook.
func TestNobodyWaitsForACPU(t *testing.T) {
	r := newRequests(1)
	r.ask("l/f/1", "l/f/2", "l/f/3")
	r.expect(t, "while the CPUs are busy", "l/f/1")
	r.busy = false
	r.pass(between)
	r.expect(t, "at the first look", "l/f/1", "l/f/2")
	r.pass(between)
	r.expect(t, "at the second look", "l/f/1", "l/f/2", "l/f/3")
	end := r.turns.Begin()
	if end == nil {
		t.Fatal("a request has to wait although no goroutine does")
	}
	r.busy = true
	if r.turns.Begin() != nil {
		t.Error("a request began beside three others while the CPUs are busy")
	}
	end()
	r.end("l/f/3")
	r.ask("l/f/4")
	r.expect(t, "beside none that has a turn", "l/f/1", "l/f/2", "l/f/3", "l/f/4")
	r.pass(between)
	if r.later != nil {
		t.Error("the CPUs are looked at while no request waits")
	}
}

// TestLeave: requests whose clients are gone leave their place to others.
func TestLeave(t *testing.T) {
	r := newRequests(1)
	r.ask("l/f/1", "l/f/2", "l/f/3", "l/f/4", "l/g/1")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if r.turns.Wait(gone, "l", "h", inQueue) != nil {
		t.Error("a request whose context has ended got a turn")
	}
	for _, name := range []string{"l/f/2", "l/f/3"} {
		if !r.turns.leave(r.asked[name]) {
			t.Error("a request that waits cannot leave")
		}
	}
	if r.turns.leave(r.asked["l/f/1"]) {
		t.Error("a request whose turn has begun can leave")
	}
	r.ask("l/f/5", "l/f/6")
	for _, name := range []string{"l/f/1", "l/f/4", "l/g/1", "l/f/5"} {
		r.end(name)
	}
	r.expect(t, "without those that left", "l/f/1", "l/f/4", "l/g/1", "l/f/5", "l/f/6")
	r.end("l/f/6")
	r.ask("l/f/7")
	r.expect(t, "with nobody else", "l/f/1", "l/f/4", "l/g/1", "l/f/5", "l/f/6", "l/f/7")
}

// TestGoroutinesWait reads Go's own metric.
func TestGoroutinesWait(t *testing.T) {
	waits := goroutinesWait()
	var stop atomic.Bool
	defer stop.Store(true)
	for range 100 + 2*runtime.GOMAXPROCS(0) {
		go func() {
			for !stop.Load() { // it computes
			}
		}()
	}
	for range 1000 {
		if waits() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("of 100 goroutines more than CPUs that compute none waits for a CPU")
}

func TestRoom(t *testing.T) {
	r := newRequests(1)
	r.ask("l/flood/1", "l/flood/2", "l/flood/3", "l/flood/4", "l/flood/5", "l/normal/1", "m/flood/1")
	if r.asked["l/flood/4"] == nil || r.asked["l/flood/5"] != nil {
		t.Errorf("beside one under way not exactly %d of a flow wait", inQueue)
	}
	if r.turns.ask("l", "other", 0) != nil || len(r.turns.waiting.parts["l"].parts) != 2 {
		t.Error("a request waits in a level that has no room, or left something there")
	}
	r.end("l/flood/1")
	r.end("l/flood/2")
	r.expect(t, "without the one that is too many", "l/flood/1", "l/flood/2", "m/flood/1")
}

// TestEndedTurnsAreForgotten beside one that lasts.
func TestEndedTurnsAreForgotten(t *testing.T) {
	r := newRequests(2)
	r.ask("l/f/1")
	for range 1000 {
		r.turns.Begin()()
	}
	if n := len(r.turns.taken); n > 100 {
		t.Errorf("%d turns are remembered, of which one is taken", n)
	}
}

func BenchmarkBegin(b *testing.B) {
	turns := New(1 << 20)
	for b.Loop() {
		turns.Begin()()
	}
}
