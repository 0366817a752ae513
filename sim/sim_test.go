package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestSameSeedSameTrace runs seeds twice: the trace of a seed has to be that of its replay.
func TestSameSeedSameTrace(t *testing.T) {
	for seed := range uint64(20) {
		var first, second, replayed bytes.Buffer
		run := Seed(seed, 0, &first)
		Seed(seed, 0, &second)
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

func TestScripts(t *testing.T) {
	for _, line := range []string{
		"start s1 r0", "start s1 r2 off", "start s1 r1 stock", "stop s2", "kill s1", "pause s1", "resume s1", "cut s1", "heal s1", "jump s1 -10s", "drift s1 1.02",
		"lead s1", "unlead s1", "etcd full", "etcd slow", "run s1/write1 create things/a", "do s1/report", "apply s3/migrate", "lose s1/lease",
		"fail s1/collect", "absent s1/trigger", "finish s1/write2", "late s1/lease", "see s1 handler", "relist s1 versions",
		"tick 1.5s", "define v2", "undefine", "purge", "admin delete state things", "admin pause things", "settle",
	} {
		e, err := ParseEvent(line)
		if err != nil {
			t.Errorf("ParseEvent(%q): %v", line, err)
		}
		if e.String() != line {
			t.Errorf("ParseEvent(%q) is %q", line, e)
		}
	}
	for _, bad := range []string{"", "dance", "start", "kill s9", "do s1", "do s1/sing", "see s1", "see s1 stars", "tick", "kill s1/report"} {
		if e, err := ParseEvent(bad); err == nil {
			t.Errorf("ParseEvent(%q) = %q, want an error", bad, e)
		}
	}
	if e := (Event{Do: Tick, For: time.Second}); e.String() != "tick 1s" {
		t.Errorf("a tick prints as %q", e)
	}
	config, events, err := ParseStory("world slots=2 page=1 txn=1 more=0\nstart s1 r0 # a comment\n\nsettle\n")
	if err != nil || config != (Config{Slots: 2, Page: 1, Txn: 1, Under: 1}) || len(events) != 2 {
		t.Errorf("ParseStory: %v, %v, %v", config, events, err)
	}
	if again, _, err := ParseStory(FormatStory(config, events)); err != nil || again != config {
		t.Errorf("FormatStory does not bring the configuration back: %v, %v", again, err)
	}
}

// TestSmallWorlds tries the small worlds with one preemption; CI allows two.
func TestSmallWorlds(t *testing.T) {
	smalls, err := Smalls()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range smalls {
		r := s.Exhaust(1, 10_000)
		if r.Violation != nil {
			t.Errorf("%s: %s\n%s", s.Name, r.Violation, FormatStory(s.Config, r.Script))
		}
		if r.Violation == nil && (!r.Complete || r.Schedules < 2 && len(s.Threads) > 0) {
			t.Errorf("%s: %d schedules, complete %t", s.Name, r.Schedules, r.Complete)
		}
	}
}

// TestShrink: of a script that ends badly only the events that are needed are left.
func TestShrink(t *testing.T) {
	script, err := ParseScript(`
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
	stored := func(script []Event) bool {
		w := NewWorld(DefaultConfig(), nil)
		defer w.Close()
		for _, e := range script {
			w.Do(e)
		}
		return w.store.Lookup(things.prefix+"a") != nil
	}
	const want = "start s1 r1\nrun s1/lease\nfinish s1/lease\nrun s1/report\nfinish s1/report\nrun s1/write1 create things/a\nfinish s1/write1\n"
	if got := FormatScript(reduce(script, 1000, stored)); got != want {
		t.Errorf("shrunk to\n%swant\n%s", got, want)
	}
}

// A world in which production code has panicked leaves no dead coroutine to the next one.
func TestBenchAfterAPanic(t *testing.T) {
	run := Outcome{Config: DefaultConfig()}
	run.in(nil, func(w *World) {
		w.Do(Event{Do: Start, What: releases[0].name})
		w.resume(w.slots[0].spawn(reporting, "", func() error { panic("broken") }))
	})
	if run.Violation == nil || run.Violation.Invariant != "panic" {
		t.Fatalf("the panic was not noticed: %v", run)
	}
	Seed(0, 0, nil) // it leaves some that live
	for i, k := range bench.workers {
		ran := false
		k.task = &task{body: func() error { ran = true; return nil }}
		if k.next(); !ran || k.task != nil {
			t.Errorf("worker %d of %d is dead", i, len(bench.workers))
		}
	}
}
