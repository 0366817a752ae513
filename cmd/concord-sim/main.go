// Command concord-sim attacks the protocol by machine: it runs simulated clusters with
// faults and checks the protocol's invariants after every step. It exits with 0 if none
// was violated, 2 if one was, and 1 if it could not run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/random"
	"github.com/concord-dev/concord/sim/script"
	"github.com/concord-dev/concord/sim/worlds"
)

const (
	exitError     = 1
	exitViolation = 2

	// memory is up to where garbage is left: worlds make much of it and keep little.
	memory = 256 << 20
)

type options struct {
	seeds, from uint64
	events      int
	duration    time.Duration
	parallel    int
	script      string
	trace       bool
	aggregated  bool
	exhaustive  bool
	only        string
	preemptions int
	limit       int
	quiet       bool
	shrink      bool
	mutants     bool
	names       string
}

func main() {
	o := options{}
	flag.Uint64Var(&o.seeds, "seeds", 1000, "how many seeds to run; 0 means without end")
	flag.Uint64Var(&o.from, "from", 0, "the first seed")
	flag.IntVar(&o.events, "events", 0, fmt.Sprintf("how many events a seed's script has; 0 means as the seed chooses, from %d to %d", random.MinEvents, random.MaxEvents))
	flag.DurationVar(&o.duration, "duration", 0, "stop after this time; 0 means not before all seeds are done")
	flag.IntVar(&o.parallel, "parallel", 1, "how many worlds to run at a time")
	flag.StringVar(&o.script, "script", "", "replay the script in this file (- is standard input) instead of seeds")
	flag.BoolVar(&o.trace, "trace", false, "print what happens; with one seed or a script")
	flag.BoolVar(&o.quiet, "quiet", false, "print no progress")
	flag.BoolVar(&o.aggregated, "aggregated", false, "the seeds are worlds of an aggregated API server and its host")
	flag.BoolVar(&o.exhaustive, "exhaustive", false, "try the small worlds' schedules systematically instead of seeds")
	flag.StringVar(&o.only, "world", "", "with --exhaustive or --mutants: only this small world")
	flag.IntVar(&o.preemptions, "preemptions", 2, "with --exhaustive: the bound of preemptions in a schedule")
	flag.IntVar(&o.limit, "limit", 1_000_000, "with --exhaustive: the bound of schedules of a small world")
	flag.BoolVar(&o.shrink, "shrink", true, "shrink the script of a violation")
	flag.BoolVar(&o.mutants, "mutants", false, "drop every safety rule, one at a time, and see each violation found within so many seeds; needs Go and the sources")
	flag.StringVar(&o.names, "only", "", "with --mutants: only those of these names, separated by commas")
	// The package's own exit code of bad flags is that of a violation here.
	flag.CommandLine.Init(os.Args[0], flag.ContinueOnError)
	switch err := flag.CommandLine.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(exitError)
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memory)
	code, err := o.run(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "concord-sim:", err)
		os.Exit(exitError)
	}
	os.Exit(code)
}

func (o options) run(out io.Writer) (int, error) {
	switch {
	case flag.NArg() > 0:
		return 0, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case o.parallel < 1:
		return 0, errors.New("--parallel must be at least 1")
	case o.events < 0:
		return 0, errors.New("--events must not be negative")
	case o.names != "" && !o.mutants:
		return 0, errors.New("--only needs --mutants")
	case o.mutants:
		return o.dropRules(out)
	case o.script != "":
		return o.replay(out)
	case o.exhaustive:
		return o.exhaust(out)
	case o.trace && o.seeds != 1:
		return 0, errors.New("--trace needs --seeds 1")
	}
	return o.search(out), nil
}

func (o options) replay(out io.Writer) (int, error) {
	text, err := os.ReadFile(o.script)
	if o.script == "-" {
		text, err = io.ReadAll(os.Stdin)
	}
	if err != nil {
		return 0, err
	}
	config, events, err := script.ParseStory(string(text))
	if err != nil {
		return 0, err
	}
	var trace io.Writer
	if o.trace {
		trace = out
	}
	run := sim.Replay(config, events, trace)
	return conclude(out, run), nil
}

func conclude(out io.Writer, run sim.Outcome) int {
	if run.Violation == nil {
		fmt.Fprintln(out, run)
		return 0
	}
	fmt.Fprintf(out, "VIOLATION %s: %s\n", run.Violation.Invariant, run.Violation.What)
	return exitViolation
}

// exhaust tries small worlds, several at a time, until one violates an invariant.
func (o options) exhaust(out io.Writer) (int, error) {
	smalls, err := worlds.All()
	if err != nil {
		return 0, err
	}
	if o.only != "" {
		if smalls = slices.DeleteFunc(smalls, func(s worlds.Small) bool { return s.Name != o.only }); len(smalls) == 0 {
			return 0, fmt.Errorf("there is no small world %q", o.only)
		}
	}
	results := make([]worlds.Exhausted, len(smalls))
	slots := make(chan struct{}, o.parallel)
	var running sync.WaitGroup
	var printing sync.Mutex
	for i, s := range smalls {
		slots <- struct{}{}
		running.Go(func() {
			results[i] = s.Exhaust(o.preemptions, o.limit)
			printing.Lock()
			defer printing.Unlock()
			results[i].Print(out, s)
			<-slots
		})
	}
	running.Wait()
	for _, r := range results {
		if r.Violation != nil {
			return exitViolation, nil
		}
	}
	return 0, nil
}

// search runs seeds until one violates an invariant.
func (o options) search(out io.Writer) int {
	var next, done, events atomic.Uint64
	var simulated atomic.Int64
	var rewrites sim.Rewrites
	var counting sync.Mutex
	next.Store(o.from)
	began := time.Now()
	var found atomic.Pointer[failure]
	stop := func() bool {
		return found.Load() != nil || o.duration > 0 && time.Since(began) > o.duration
	}
	progress := func() {
		elapsed := time.Since(began).Seconds()
		fmt.Fprintf(out, "%d schedules, %d events, %.0f schedules/s, %.0f s simulated per s\n",
			done.Load(), events.Load(), float64(done.Load())/elapsed, time.Duration(simulated.Load()).Seconds()/elapsed)
	}
	var workers sync.WaitGroup
	for range o.parallel {
		workers.Go(func() {
			for !stop() {
				seed := next.Add(1) - 1
				if o.seeds > 0 && seed >= o.from+o.seeds {
					return
				}
				var trace io.Writer
				if o.trace {
					trace = out
				}
				run := o.seed(seed, trace)
				done.Add(1)
				events.Add(uint64(run.Steps))
				simulated.Add(int64(run.Simulated))
				counting.Lock()
				rewrites = rewrites.Plus(run.Rewrites)
				counting.Unlock()
				if run.Violation != nil {
					found.CompareAndSwap(nil, &failure{seed, run})
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		workers.Wait()
		close(finished)
	}()
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for waiting := true; waiting; {
		select {
		case <-finished:
			waiting = false
		case <-ticker.C:
			if !o.quiet {
				progress()
			}
		}
	}
	progress()
	fmt.Fprintln(out, rewrites)
	if f := found.Load(); f != nil {
		o.print(out, f)
		return exitViolation
	}
	fmt.Fprintln(out, "no violation")
	return 0
}

// seed runs the world of a seed.
func (o options) seed(seed uint64, trace io.Writer) sim.Outcome {
	if o.aggregated {
		return random.Aggregated(seed, o.events, trace)
	}
	return random.Seed(seed, o.events, trace)
}

type failure struct {
	seed uint64
	run  sim.Outcome
}

// shrinkBudget bounds the replays that a script is shrunk with.
const shrinkBudget = 5000

func (o options) print(out io.Writer, f *failure) {
	v := f.run.Violation
	fmt.Fprintf(out, "VIOLATION %s: seed %d: %s\n", v.Invariant, f.seed, v.What)
	more := ""
	if o.aggregated {
		more = " --aggregated"
	}
	if o.events > 0 {
		more += fmt.Sprintf(" --events %d", o.events)
	}
	fmt.Fprintf(out, "replay: go run ./cmd/concord-sim --seeds 1 --from %d%s --trace\n", f.seed, more)
	if !o.shrink {
		return
	}
	small := sim.Shrink(f.run.Config, f.run.Script, v.Invariant, shrinkBudget)
	fmt.Fprintf(out, "shrunk to %d of %d events; replay with --script FILE --trace:\n%s", len(small), len(f.run.Script), script.FormatStory(f.run.Config, small))
}
