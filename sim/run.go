package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"
)

// Outcome is the result of a seed or a script.
type Outcome struct {
	Config    Config
	Script    []Event
	Violation *Violation
	// Steps is how many events were possible, those of the rest at the end not counted.
	Steps int
	// Simulated is how much time passed in the world.
	Simulated time.Duration
	Rewrites  Rewrites
}

// Rewrites counts the object transactions of migrations, each of which was written, or refused
// because its object or the fence had moved, or failed otherwise, or has not arrived.
type Rewrites struct {
	Sent, Written, Refused, Failed int
	// Unanswered are those whose sender did not hear of it, and Unheard those of them that were
	// written all the same when the sender gave up.
	Unanswered, Unheard int
}

// Plus adds counts.
func (r Rewrites) Plus(o Rewrites) Rewrites {
	return Rewrites{
		Sent: r.Sent + o.Sent, Written: r.Written + o.Written, Refused: r.Refused + o.Refused, Failed: r.Failed + o.Failed,
		Unanswered: r.Unanswered + o.Unanswered, Unheard: r.Unheard + o.Unheard,
	}
}

// String tells them in one line.
func (r Rewrites) String() string {
	return fmt.Sprintf("%d object transactions of migrations: %d written, %d refused, %d failed; %d unanswered, of which %d had been written",
		r.Sent, r.Written, r.Refused, r.Failed, r.Unanswered, r.Unheard)
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
	lag := random(seed, 1)
	config.Lag, config.Census = lag.IntN(2), lag.IntN(2)
	busy := random(seed, 3)
	if busy.IntN(2) == 0 {
		config.Under = 2 + busy.IntN(maxUnder-1)
		config.Txn = config.Under + busy.IntN(2)
		config.Page = config.Txn + busy.IntN(3)
	}
	run := Outcome{Config: config}
	run.in(trace, func(w *World) {
		begin := opening(config, r.IntN(4))
		c := newChooser(w, r, random(seed, 2))
		if config.Under > 1 {
			c.temper.rewrite(busy)
			begin = rewriting(config, c.temper.objects, busy)
		}
		for _, e := range begin {
			run.event(w, e)
		}
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
		r.Violation, r.Simulated, r.Rewrites = w.violation, w.now, w.rewrites
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

// rewriting is how a world begins whose rewrites have several transactions under way: there are
// objects, the version that is stored has changed, and a migration has been made.
func rewriting(config Config, objects int, r *rand.Rand) []Event {
	release := r.IntN(len(releases) - 1)
	moved := things
	if r.IntN(2) == 0 {
		moved = widgets
	}
	if moved == things {
		release = 1 + r.IntN(len(releases)-2) // the next one stores another version
	}
	events := opening(config, release+1)
	for i := range objects {
		for _, of := range all {
			create := fmt.Sprintf("create %s/%c", of.name, 'a'+i)
			events = append(events, Event{Do: Run, Role: writing1, What: create}, Event{Do: Finish, Role: writing1})
		}
	}
	if moved == widgets {
		events = append(events, Event{Do: Define, What: "v2"})
	}
	for slot := range config.Slots {
		if moved == things {
			events = append(events, Event{Do: Admin, What: deleteLease[slot]}, Event{Do: Kill, Slot: slot},
				Event{Do: Start, Slot: slot, What: releases[release+1].name}, Event{Do: Run, Slot: slot, Role: leasing}, Event{Do: Finish, Slot: slot, Role: leasing})
		}
	}
	for range 2 {
		for slot := range config.Slots {
			events = append(events, Event{Do: Relist, Slot: slot, See: seeLeases}, Event{Do: Relist, Slot: slot, See: seeVersions},
				Event{Do: Relist, Slot: slot, See: seeDefinitions}, Event{Do: Relist, Slot: slot, See: seeHandler},
				Event{Do: Run, Slot: slot, Role: reporting}, Event{Do: Finish, Slot: slot, Role: reporting})
		}
	}
	events = append(events, Event{Do: Lead})
	for range 3 {
		events = append(events, Event{Do: Run, Role: triggering, What: moved.name}, Event{Do: Finish, Role: triggering})
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
