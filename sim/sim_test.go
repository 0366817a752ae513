package sim

import (
	"testing"

	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// TestShrink: of a script, only the events are left that are needed for its bad end.
func TestShrink(t *testing.T) {
	events, err := script.Parse(`
start s1 r1
run s1/lease
finish s1/lease
start s2 r1
tick 1s
relist s1 definitions
run s1/report
tick 2s
finish s1/report
kill s2
run s1/write1 create things/a
finish s1/write1
`)
	if err != nil {
		t.Fatal(err)
	}
	// Here, a bad end is that the object is stored.
	stored := func(events []script.Event) bool {
		w := NewWorld(script.DefaultConfig(), nil)
		defer w.Close()
		for _, e := range events {
			w.Do(e)
		}
		return w.store.Lookup(object.Things.Prefix+"a") != nil
	}
	const want = "start s1 r1\nrun s1/lease\nfinish s1/lease\nrun s1/report\nfinish s1/report\nrun s1/write1 create things/a\nfinish s1/write1\n"
	if got := script.Format(script.Reduce(events, 1000, stored)); got != want {
		t.Errorf("shrunk to\n%swant\n%s", got, want)
	}
}

// TestPanic: a panic in production code counts as a violation, and later worlds run.
func TestPanic(t *testing.T) {
	run := Run(script.DefaultConfig(), nil, func(w *World, _ func(script.Event)) {
		w.Do(script.Event{Do: script.Start, What: object.Releases[0].Name})
		w.resume(w.slots[0].spawn(script.Reporting, "", func() error { panic("broken") }))
	})
	if run.Violation == nil || run.Violation.Invariant != "panic" {
		t.Fatalf("the panic was not noticed: %v", run)
	}
	next := Run(script.DefaultConfig(), nil, func(w *World, do func(script.Event)) {
		do(script.Event{Do: script.Start, What: object.Releases[0].Name})
		do(script.Event{Do: script.Settle})
	})
	if next.Violation != nil || next.Steps != 2 {
		t.Errorf("the next world: %s", next)
	}
}
