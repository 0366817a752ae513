package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/script"
)

// Outcome is the result of a seed or a script.
type Outcome struct {
	Config    script.Config
	Script    []script.Event
	Violation *invariant.Violation
	// Steps is how many events of the script were possible. What happens while the world comes to rest does not count.
	Steps int
	// Simulated is how much time passed in the world.
	Simulated time.Duration
	Rewrites  Rewrites
}

// Rewrites counts the object transactions of migrations: written, refused because the object or the fence had moved,
// failed for another reason, or not arrived.
type Rewrites struct {
	Sent, Written, Refused, Failed int
	// Unanswered are transactions whose sender did not get an answer, and Unheard those of them that had been written
	// when the sender gave up.
	Unanswered, Unheard int
}

// Plus adds counts.
func (r Rewrites) Plus(o Rewrites) Rewrites {
	return Rewrites{
		Sent: r.Sent + o.Sent, Written: r.Written + o.Written, Refused: r.Refused + o.Refused, Failed: r.Failed + o.Failed,
		Unanswered: r.Unanswered + o.Unanswered, Unheard: r.Unheard + o.Unheard,
	}
}

// String returns the counts in one line.
func (r Rewrites) String() string {
	return fmt.Sprintf("%d object transactions of migrations: %d written, %d refused, %d failed; %d unanswered, of which %d had been written",
		r.Sent, r.Written, r.Refused, r.Failed, r.Unanswered, r.Unheard)
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

// String returns the outcome in one line.
func (r Outcome) String() string {
	if r.Violation == nil {
		return fmt.Sprintf("no violation in %d events, %s", r.Steps, r.Simulated)
	}
	return fmt.Sprintf("violation of %s", r.Violation)
}
