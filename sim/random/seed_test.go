package random

import (
	"bytes"
	"strings"
	"testing"

	"github.com/concord-dev/concord/sim"
)

// TestSameSeedSameTrace runs each seed twice; the traces must be the same, and also that of the
// replay of its script.
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
		sim.Replay(run.Config, run.Script, &replayed)
		if got, want := replayed.String(), withoutImpossible(first.String()); got != want {
			t.Fatalf("seed %d is not what its script does; they differ at %s", seed, difference(want, got))
		}
	}
}

// withoutImpossible removes the events from a trace that were not possible.
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

// TestAggregated runs some seeds of worlds with an aggregated API; in some of them objects are
// migrated.
func TestAggregated(t *testing.T) {
	var rewrites sim.Rewrites
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

// go test ./sim/random -run '^$' -bench Seeds
func BenchmarkSeeds(b *testing.B) {
	events := 0
	for i := range b.N {
		events += Seed(uint64(i), 0, nil).Steps
	}
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
}
