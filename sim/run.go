package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// Outcome is the result of a seed or a script.
type Outcome struct {
	Config    script.Config
	Script    []script.Event
	Violation *invariant.Violation
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
	config := script.DefaultConfig()
	config.Slots = 2 + r.IntN(2)
	config.Page, config.Txn = 1+r.IntN(2), 1+r.IntN(2)
	if r.IntN(20) == 0 {
		config.More = 8
	}
	lag := random(seed, 1)
	config.Lag, config.Census = lag.IntN(2), lag.IntN(2)
	busy := random(seed, 3)
	if busy.IntN(2) == 0 {
		config.Under = 2 + busy.IntN(script.MaxUnder-1)
		config.Txn = config.Under + busy.IntN(2)
		config.Page = config.Txn + busy.IntN(3)
	}
	return Run(config, trace, func(w *World, do func(script.Event)) {
		begin := opening(config, r.IntN(4))
		c := newChooser(w, r, random(seed, 2))
		if config.Under > 1 {
			c.temper.rewrite(busy)
			begin = rewriting(config, c.temper.objects, busy)
		}
		for _, e := range begin {
			do(e)
		}
		live(w, events, r, c.next, do)
	})
}

// live does so many events, or a random number of them if that is 0, and has the world settle then.
func live(w *World, events int, r *rand.Rand, next func() script.Event, do func(script.Event)) {
	if events == 0 {
		events = MinEvents + r.IntN(MaxEvents-MinEvents)
	}
	for w.steps < events && w.checker.Violation == nil {
		do(next())
	}
	do(script.Event{Do: script.Settle})
}

// Aggregated is Seed for a world whose servers are the replicas of an aggregated API server.
func Aggregated(seed uint64, events int, trace io.Writer) Outcome {
	r := random(seed, 4)
	config := script.DefaultConfig()
	config.Slots, config.Host = 2+r.IntN(2), 1+r.IntN(2)
	config.Lag = r.IntN(2)
	return Run(config, trace, func(w *World, do func(script.Event)) {
		c := newHostedChooser(w, r)
		for _, e := range openingHosted(config, c.temper.releases[0], r.IntN(4)) {
			do(e)
		}
		live(w, events, r, c.next, do)
	})
}

// Replay runs a script. Events that are not possible when their turn comes are passed over.
func Replay(config script.Config, events []script.Event, trace io.Writer) Outcome {
	return Run(config, trace, func(_ *World, do func(script.Event)) {
		for _, e := range events {
			do(e)
		}
	})
}

// Shrink returns a script that violates the same invariant and has no event that can be
// left out. budget bounds the number of replays.
func Shrink(config script.Config, events []script.Event, invariant string, budget int) []script.Event {
	return script.Reduce(events, budget, func(candidate []script.Event) bool {
		run := Replay(config, candidate, nil)
		return run.Violation != nil && run.Violation.Invariant == invariant
	})
}

// Run runs body in a new world, whose events it has happen by do. After a violation none happens any
// more. A panic of production code is a violation.
func Run(config script.Config, trace io.Writer, body func(w *World, do func(script.Event))) (run Outcome) {
	run.Config = config
	w := NewWorld(config, trace)
	defer func() {
		if e := recover(); e != nil {
			w.checker.Violate("panic", "%v\n%s", e, debug.Stack())
		}
		w.Close()
		run.Violation, run.Steps, run.Simulated, run.Rewrites = w.checker.Violation, w.steps, w.now, w.rewrites
	}()
	body(w, func(e script.Event) {
		run.Script = append(run.Script, e)
		if !w.Do(e) {
			run.Script = run.Script[:len(run.Script)-1]
		}
	})
	return run
}

// Violation is the first violation, nil if there is none.
func (w *World) Violation() *invariant.Violation { return w.checker.Violation }

// Task says whether the server of an event has a task of its role, and whether that can go on.
func (w *World) Task(e script.Event) (running, due bool) {
	if e.Host {
		w = w.host
	}
	p := w.slots[e.Slot]
	if p == nil || p.gone || p.tasks[e.Role] == nil {
		return false, false
	}
	return true, p.tasks[e.Role].req != nil || p.tasks[e.Role].due()
}

// ReportsIn returns how long it is until a server repeats a report that has failed, if it does.
func (w *World) ReportsIn(slot int) time.Duration {
	p := w.slots[slot]
	if p == nil || p.gone {
		return 0
	}
	return p.reportAt - w.now
}

// Close ends all processes.
func (w *World) Close() {
	for _, p := range w.slots {
		if p != nil {
			p.end()
		}
	}
	if w.host != nil {
		w.host.Close()
	}
	w.coroutines.Close()
}

// opening is how a world begins: with nothing, or with servers of one release at rest
// and some objects.
func opening(config script.Config, kind int) []script.Event {
	if kind == 0 {
		return nil
	}
	r := object.Releases[kind-1].Name
	var events []script.Event
	for slot := range config.Slots {
		events = append(events, script.Event{Do: script.Start, Slot: slot, What: r})
	}
	events = append(events, script.Event{Do: script.Lead}, script.Event{Do: script.Define, What: "v1"}, script.Event{Do: script.Settle})
	for _, what := range []string{"create things/a", "create widgets/a", "create things/b"} {
		events = append(events, script.Event{Do: script.Run, Role: script.Writing1, What: what}, script.Event{Do: script.Finish, Role: script.Writing1})
	}
	return events
}

// openingHosted is how a world begins that has a host: with nothing, or with replicas of one release at rest and an object.
func openingHosted(config script.Config, release object.Release, kind int) []script.Event {
	if kind == 0 {
		return nil
	}
	var events []script.Event
	for slot := range config.Host {
		events = append(events, script.Event{Host: true, Do: script.Start, Slot: slot, What: object.Releases[len(object.Releases)-1].Name})
	}
	for slot := range config.Slots {
		events = append(events, script.Event{Do: script.Start, Slot: slot, What: release.Name})
	}
	return append(events, script.Event{Host: true, Do: script.Lead}, script.Event{Do: script.Lead}, script.Event{Do: script.Settle},
		script.Event{Do: script.Run, Role: script.Writing1, What: "create things/a"}, script.Event{Do: script.Finish, Role: script.Writing1})
}

// rewriting is how a world begins whose rewrites have several transactions under way: there are
// objects, the version that is stored has changed, and a migration has been made.
func rewriting(config script.Config, objects int, r *rand.Rand) []script.Event {
	release := r.IntN(len(object.Releases) - 1)
	moved := object.Things
	if r.IntN(2) == 0 {
		moved = object.Widgets
	}
	if moved == object.Things {
		release = 1 + r.IntN(len(object.Releases)-2) // the next one stores another version
	}
	events := opening(config, release+1)
	for i := range objects {
		for _, of := range object.All {
			create := fmt.Sprintf("create %s/%c", of.Name, 'a'+i)
			events = append(events, script.Event{Do: script.Run, Role: script.Writing1, What: create}, script.Event{Do: script.Finish, Role: script.Writing1})
		}
	}
	if moved == object.Widgets {
		events = append(events, script.Event{Do: script.Define, What: "v2"})
	}
	for slot := range config.Slots {
		if moved == object.Things {
			events = append(events, script.Event{Do: script.Admin, What: deleteLease[slot]}, script.Event{Do: script.Kill, Slot: slot},
				script.Event{Do: script.Start, Slot: slot, What: object.Releases[release+1].Name}, script.Event{Do: script.Run, Slot: slot, Role: script.Leasing}, script.Event{Do: script.Finish, Slot: slot, Role: script.Leasing})
		}
	}
	for range 2 {
		for slot := range config.Slots {
			events = append(events, script.Event{Do: script.Relist, Slot: slot, See: script.SeeLeases}, script.Event{Do: script.Relist, Slot: slot, See: script.SeeVersions},
				script.Event{Do: script.Relist, Slot: slot, See: script.SeeDefinitions}, script.Event{Do: script.Relist, Slot: slot, See: script.SeeHandler},
				script.Event{Do: script.Run, Slot: slot, Role: script.Reporting}, script.Event{Do: script.Finish, Slot: slot, Role: script.Reporting})
		}
	}
	events = append(events, script.Event{Do: script.Lead})
	for range 3 {
		events = append(events, script.Event{Do: script.Run, Role: script.Triggering, What: moved.Name}, script.Event{Do: script.Finish, Role: script.Triggering})
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

// random returns a generator of random numbers for a seed and a purpose.
func random(seed uint64, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }
