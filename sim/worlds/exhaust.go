// Package worlds has small worlds, simulated clusters of a few events whose schedules are tried
// systematically, with all interleavings within a bound.
package worlds

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/script"
)

// Small is a small world whose schedules are tried systematically: threads of events run
// after a common beginning, interleaved in every way that has at most a number of
// preemptions. A task that an event begins is part of its thread, call by call. A world
// without threads has one schedule.
type Small struct {
	Name    string
	Config  script.Config
	Begin   []script.Event
	Threads [][]script.Event
}

//go:embed *.txt
var smallFiles embed.FS

// threadLine begins a thread in a small world's text.
const threadLine = "thread"

// All returns the small worlds by name.
func All() ([]Small, error) {
	files, err := smallFiles.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var smalls []Small
	for _, f := range files {
		text, err := smallFiles.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		small, err := parseSmall(strings.TrimSuffix(f.Name(), ".txt"), string(text))
		if err != nil {
			return nil, fmt.Errorf("small world %s: %w", f.Name(), err)
		}
		smalls = append(smalls, small)
	}
	return smalls, nil
}

// parseSmall reads a story in which lines that begin with "thread" begin threads.
func parseSmall(name, text string) (Small, error) {
	var uncommented []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			uncommented = append(uncommented, line)
		}
	}
	small := Small{Name: name}
	for i, part := range split(uncommented, func(line string) bool { return strings.HasPrefix(line, threadLine) }) {
		text := strings.Join(part, "\n")
		var err error
		if i == 0 {
			small.Config, small.Begin, err = script.ParseStory(text)
		} else {
			var thread []script.Event
			thread, err = script.Parse(text)
			small.Threads = append(small.Threads, thread)
		}
		if err != nil {
			return small, err
		}
	}
	if len(small.Threads) == 1 {
		return small, errors.New("want two threads or more, or none")
	}
	return small, nil
}

// split cuts lines where begins holds, and leaves that line out.
func split(lines []string, begins func(string) bool) [][]string {
	parts := [][]string{nil}
	for _, line := range lines {
		if begins(line) {
			parts = append(parts, nil)
			continue
		}
		last := len(parts) - 1
		parts[last] = append(parts[last], line)
	}
	return parts
}

// thread is how far a thread of a small world is.
type thread struct {
	events []script.Event
	// task is under way, with the slot and role to find it by.
	task *script.Event
	// again counts how often a report was made again after its back-off.
	again int
}

// maxAgain bounds how often a thread repeats a report that found a conflict.
const maxAgain = 3

// next returns the thread's next event; false if it has ended or waits.
func (t *thread) next(w *sim.World) (script.Event, bool) {
	if t.task != nil {
		if running, due := w.Task(*t.task); running {
			return script.Event{Host: t.task.Host, Do: script.Do, Slot: t.task.Slot, Role: t.task.Role}, due
		}
		if wait := w.ReportsIn(t.task.Slot); t.task.Role == script.Reporting && wait > 0 && t.again < maxAgain {
			t.again++
			t.events = slices.Insert(t.events, 0, script.Event{Do: script.Tick, For: wait}, *t.task)
		}
		t.task = nil
	}
	if len(t.events) == 0 {
		return script.Event{}, false
	}
	return t.events[0], true
}

// advance goes past an event that next returned and that has happened, or could not.
func (t *thread) advance(e script.Event) {
	if t.task != nil {
		return
	}
	t.events = t.events[1:]
	if e.Do == script.Run {
		t.task = &e
	}
}

// Exhausted is the result of a search of a small world.
type Exhausted struct {
	Schedules int
	Violation *invariant.Violation
	// Script is the schedule that violates an invariant.
	Script []script.Event
	// Complete says that there is no other schedule within the bound.
	Complete bool
}

// Exhaust tries the schedules of a small world with at most preemptions preemptions, or
// limit of them, until one violates an invariant.
func (s Small) Exhaust(preemptions, limit int) Exhausted {
	var result Exhausted
	// path is the choice made at every step where there was more than one, and how many
	// there were.
	var path []choice
	for result.Schedules < limit {
		run := s.schedule(&path, preemptions)
		result.Schedules++
		if run.Violation != nil {
			result.Violation, result.Script = run.Violation, run.Script
			return result
		}
		for len(path) > 0 && path[len(path)-1].taken+1 == path[len(path)-1].of {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			result.Complete = true
			return result
		}
		path[len(path)-1].taken++
	}
	return result
}

type choice struct{ taken, of int }

// schedule runs one schedule: the choices of path, and then always the first. It leaves
// the choices that there were in path.
func (s Small) schedule(path *[]choice, preemptions int) sim.Outcome {
	return sim.Run(s.Config, nil, func(w *sim.World, do func(script.Event)) {
		for _, e := range s.Begin {
			do(e)
		}
		threads := make([]*thread, len(s.Threads))
		for i, events := range s.Threads {
			threads[i] = &thread{events: slices.Clone(events)}
		}
		current, step := -1, 0
		for w.Violation() == nil {
			options := runnable(w, threads, current)
			if len(options) == 0 {
				break
			}
			goesOn := options[0] == current
			if goesOn && preemptions == 0 {
				options = options[:1]
			}
			chosen := 0
			if len(options) > 1 {
				if step == len(*path) {
					*path = append(*path, choice{of: len(options)})
				}
				chosen = (*path)[step].taken
				step++
			}
			if goesOn && chosen > 0 {
				preemptions--
			}
			current = options[chosen]
			e, _ := threads[current].next(w)
			do(e)
			threads[current].advance(e)
		}
		do(script.Event{Do: script.Settle})
	})
}

// runnable returns the threads that can go on, the current one first.
func runnable(w *sim.World, threads []*thread, current int) []int {
	var options []int
	for i, t := range threads {
		if _, ok := t.next(w); !ok {
			continue
		}
		if i == current {
			options = slices.Insert(options, 0, i)
		} else {
			options = append(options, i)
		}
	}
	return options
}

// Print prints the result of a search.
func (r Exhausted) Print(out io.Writer, s Small) {
	switch {
	case r.Violation != nil:
		fmt.Fprintf(out, "VIOLATION %s: small world %s, schedule %d: %s\n%s", r.Violation.Invariant, s.Name, r.Schedules, r.Violation.What, script.FormatStory(s.Config, r.Script))
	case r.Complete:
		fmt.Fprintf(out, "small world %s: %d schedules, all there are\n", s.Name, r.Schedules)
	default:
		fmt.Fprintf(out, "small world %s: %d schedules, not all\n", s.Name, r.Schedules)
	}
}
