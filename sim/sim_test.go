package sim

import (
	"bytes"
	"strings"
	"testing"

	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// TestSameSeedSameTrace runs seeds twice: the trace of a seed has to be that of its replay.
func TestSameSeedSameTrace(t *testing.T) {
	for i := range uint64(30) {
		seed, world := i, Seed
		if i >= 20 {
			world = Aggregated
		}
		var first, second, replayed bytes.Buffer
		run := world(seed, 0, &first)
		world(seed, 0, &second)
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("seed %d has two traces; they differ at %s", seed, difference(first.String(), second.String()))
		}
		Replay(run.Config, run.Script, &replayed)
		if got, want := replayed.String(), withoutImpossible(first.String()); got != want {
			t.Fatalf("seed %d is not what its script does; they differ at %s", seed, difference(want, got))
		}
	}
}

// withoutImpossible leaves out the events that a seed tried and could not do.
func withoutImpossible(trace string) string {
	lines := strings.SplitAfter(trace, "\n")
	var kept []string
	for i, line := range lines {
		next := ""
		if i+1 < len(lines) {
			next = lines[i+1]
		}
		if line != "   not possible now\n" && next != "   not possible now\n" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func difference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return as[i] + "\nand\n" + bs[i]
		}
	}
	return "their ends"
}

// TestSeeds runs some seeds; CI runs many more.
func TestSeeds(t *testing.T) {
	for seed := range uint64(200) {
		run := Seed(seed, 0, nil)
		if run.Violation != nil {
			t.Fatalf("seed %d: %s", seed, run)
		}
		if run.Steps < MinEvents {
			t.Errorf("seed %d: only %d events happened", seed, run.Steps)
		}
	}
}

// TestAggregated does so for worlds of an aggregated API: in some of them objects are migrated.
func TestAggregated(t *testing.T) {
	var rewrites Rewrites
	for seed := range uint64(100) {
		run := Aggregated(seed, 0, nil)
		if run.Violation != nil {
			t.Fatalf("seed %d: %s", seed, run)
		}
		rewrites = rewrites.Plus(run.Rewrites)
	}
	if rewrites.Written < 20 {
		t.Errorf("%s", rewrites)
	}
}

// TestShrink: of a script that ends badly only the events that are needed are left.
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
	// The script has to end with the object stored.
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

// A panic of production code is a violation, and worlds go on.
func TestPanic(t *testing.T) {
	run := Run(script.DefaultConfig(), nil, func(w *World, _ func(script.Event)) {
		w.Do(script.Event{Do: script.Start, What: object.Releases[0].Name})
		w.resume(w.slots[0].spawn(script.Reporting, "", func() error { panic("broken") }))
	})
	if run.Violation == nil || run.Violation.Invariant != "panic" {
		t.Fatalf("the panic was not noticed: %v", run)
	}
	if next := Seed(0, 0, nil); next.Violation != nil {
		t.Errorf("the next world: %s", next)
	}
}
