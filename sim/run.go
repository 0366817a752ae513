package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"
)

// Outcome is what became of a seed or a script.
type Outcome struct {
	Config    Config
	Script    []Event
	Violation *Violation
	// Steps is how many events were possible, those of the rest at the end not counted.
	Steps int
	// Simulated is how much time passed in the world.
	Simulated time.Duration
}

// MinEvents and MaxEvents bound how many events the script of a seed has that chooses
// itself.
const (
	MinEvents = 200
	MaxEvents = 450
)

// Seed runs the world of a seed, whose script has so many events; 0 means that the seed
// chooses, too. trace may be nil.
func Seed(seed uint64, events int, trace io.Writer) Outcome {
	r := random(seed, 0)
	config := DefaultConfig()
	config.Slots = 2 + r.IntN(2)
	config.Page, config.Txn = 1+r.IntN(2), 1+r.IntN(2)
	if r.IntN(20) == 0 {
		config.More = 8
	}
	config.Lag = random(seed, 1).IntN(2)
	run := Outcome{Config: config}
	run.in(trace, func(w *World) {
		for _, e := range opening(config, r.IntN(4)) {
			run.event(w, e)
		}
		c := newChooser(w, r, random(seed, 2))
		n := events
		if n == 0 {
			n = MinEvents + r.IntN(MaxEvents-MinEvents)
		}
		run.Script = slices.Grow(run.Script, max(n-run.Steps, 0)+1)
		for run.Steps < n && w.violation == nil {
			run.event(w, c.next())
		}
		run.event(w, Event{Do: Settle})
	})
	return run
}

// Replay runs a script. Events that are not possible when their turn comes are passed over.
func Replay(config Config, script []Event, trace io.Writer) Outcome {
	run := Outcome{Config: config}
	run.in(trace, func(w *World) {
		for _, e := range script {
			run.event(w, e)
		}
	})
	return run
}

// in runs body in a new world. A panic of production code is a violation.
func (r *Outcome) in(trace io.Writer, body func(*World)) {
	w := NewWorld(r.Config, trace)
	defer func() {
		if e := recover(); e != nil {
			w.violate("panic", "%v\n%s", e, debug.Stack())
		}
		w.Close()
		r.Violation, r.Simulated = w.violation, w.now
	}()
	body(w)
}

func (r *Outcome) event(w *World, e Event) {
	if w.violation != nil {
		return
	}
	r.Script = append(r.Script, e)
	if w.Do(e) {
		r.Steps++
	} else {
		r.Script = r.Script[:len(r.Script)-1]
	}
}

// Close ends all processes.
func (w *World) Close() {
	for _, p := range w.slots {
		if p != nil {
			p.end()
		}
	}
	bench.Lock()
	defer bench.Unlock()
	bench.workers = append(bench.workers, w.idle...)
	w.idle = nil
}

// opening is how a world begins: with nothing, or with servers of one release at rest
// and some objects.
func opening(config Config, kind int) []Event {
	if kind == 0 {
		return nil
	}
	r := releases[kind-1].name
	var events []Event
	for slot := range config.Slots {
		events = append(events, Event{Do: Start, Slot: slot, What: r})
	}
	events = append(events, Event{Do: Lead}, Event{Do: Define, What: "v1"}, Event{Do: Settle})
	for _, what := range []string{"create things/a", "create widgets/a", "create things/b"} {
		events = append(events, Event{Do: Run, Role: writing1, What: what}, Event{Do: Finish, Role: writing1})
	}
	return events
}

// String tells how it ended, in one line.
func (r Outcome) String() string {
	if r.Violation == nil {
		return fmt.Sprintf("no violation in %d events, %s", r.Steps, r.Simulated)
	}
	return fmt.Sprintf("violation of %s", r.Violation)
}
