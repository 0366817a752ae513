package mutant

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config holds the settings of Run.
type Config struct {
	// Root is the folder of the sources; see Root.
	Root string
	// Package is the simulator's command, as a folder below Root.
	Package string
	// Budgets are the argument lists with which the simulator is run, one after the other
	// until a mutant is caught. The arguments of a mutant's Find come first.
	Budgets [][]string
	// Parallel is how many mutants are built and run at a time. Default: the number of CPUs.
	Parallel int
	// Timeout bounds one run of the simulator. Default: 10 min.
	Timeout time.Duration
	// Verbose has Check print what each violation is, and the rule that was dropped.
	Verbose bool
	// Done, if not nil, is called after every mutant, one call at a time.
	Done func(Outcome)
}

// Outcome is the result of one mutant, or of the control, whose Mutant has no name: the
// simulator as it is, run with every argument list that was used.
type Outcome struct {
	Mutant Mutant
	// Violation is the violation that the simulator found, nil if it found none.
	Violation *Violation
	// Schedules counts the runs in which nothing was found, too; it is 0 where the
	// simulator did not say.
	Schedules int64
	// Ran is how long it took.
	Ran time.Duration
	// Err says why there is no answer.
	Err error
}

// Violation is a violation as the simulator printed it.
type Violation struct {
	// Invariant is an invariant of DESIGN 3.7, such as "I3".
	Invariant string
	// Args are the arguments of the run that found it, and Line is the line that reports it.
	Args []string
	Line string
}

// Wrong says whether the outcome is not as it has to be, and why.
func (o Outcome) Wrong() (string, bool) {
	switch m, caught := o.Mutant, o.Violation != nil; {
	case o.Err != nil:
		return o.Err.Error(), true
	case m.Name == "" && caught:
		return "the simulator finds a violation without any mutant", true
	case m.Name != "" && m.Covered == "" && !caught:
		return "not caught", true
	case m.Covered != "" && caught:
		return "caught, although it is said to do no harm: " + m.Covered, true
	case caught && len(m.Violates) > 0 && !slices.Contains(m.Violates, o.Violation.Invariant):
		return fmt.Sprintf("violates %s, not %s as it is said to", o.Violation.Invariant, strings.Join(m.Violates, " or ")), true
	}
	return "", false
}

// String prints one line.
func (o Outcome) String() string {
	name := o.Mutant.Name
	if name == "" {
		name = "(no mutant)"
	}
	line := "silent"
	if v := o.Violation; v != nil {
		line = fmt.Sprintf("caught by %s with %s", v.Invariant, strings.Join(v.Args, " "))
	}
	if o.Schedules > 0 {
		line += fmt.Sprintf(" after %d schedules", o.Schedules)
	}
	line = fmt.Sprintf("%-40s %s in %.1f s", name, line, o.Ran.Seconds())
	if why, wrong := o.Wrong(); wrong {
		line += "\n  WRONG: " + why
	}
	return line
}

// Run builds and runs the mutants and then the control. The outcomes are in the order of the mutants, the control
// last. An error says that nothing was proven, for example because the sources do not build without any mutant.
func Run(ctx context.Context, cfg Config, mutants []Mutant) ([]Outcome, error) {
	cfg.Parallel = cmp.Or(cfg.Parallel, runtime.NumCPU())
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Minute)
	dir, err := os.MkdirTemp("", "concord-mutants-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &runner{cfg: cfg, dir: dir, tests: map[string]error{}}
	if err := r.build(ctx, mutants); err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(mutants), len(mutants)+1)
	var wg sync.WaitGroup
	slots := make(chan struct{}, cfg.Parallel)
	for i, m := range mutants {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			outcomes[i] = r.mutant(ctx, m)
			r.done(outcomes[i])
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	control := r.control(ctx, mutants)
	r.done(control)
	return append(outcomes, control), ctx.Err()
}

type runner struct {
	cfg Config
	dir string
	// tests are the test binaries, by which they are and the package's folder. They are linked
	// when they are first needed, with or without the mutants.
	linking sync.Mutex
	tests   map[string]error
	mu      sync.Mutex // held while Config.Done is called
}

func (r *runner) done(o Outcome) {
	if r.cfg.Done == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cfg.Done(o)
}

// mutant runs a mutant until it is caught.
func (r *runner) mutant(ctx context.Context, m Mutant) Outcome {
	o := Outcome{Mutant: m}
	if len(m.Test) > 0 {
		begun := time.Now()
		o.Violation, o.Err = r.test(ctx, m.Name, m.Test)
		o.Ran = time.Since(begun)
		return o
	}
	r.search(ctx, &o, r.budgets(m))
	return o
}

// test runs tests with a mutant, or without any. A test that fails is a violation.
func (r *runner) test(ctx context.Context, name string, test []string) (*Violation, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	folder, pattern := test[0], test[1]
	binary, err := r.linkTests(ctx, name, folder)
	if err != nil {
		return nil, err
	}
	args := []string{"-test.run", pattern, "-test.v"}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), chosen+"="+name)
	cmd.Dir = filepath.Join(r.cfg.Root, filepath.FromSlash(folder))
	out, err := cmd.CombinedOutput()
	failed := failedTest.Find(out)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the tests of %s: %w", folder, ctx.Err())
	case err == nil && passedTest.Match(out):
		return nil, nil
	case err != nil && failed != nil:
		return &Violation{Invariant: "test", Args: []string{"go", "test", "./" + folder, "-run", pattern}, Line: string(failed)}, nil
	case err == nil:
		return nil, fmt.Errorf("no test of %s is called %s", folder, pattern)
	}
	return nil, fmt.Errorf("the tests of %s: %w: %s", folder, err, tail(string(out)))
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: .*$`)
	passedTest = regexp.MustCompile(`(?m)^\s*--- PASS: `)
)

// linkTests links a package's tests, once with all mutants and once without.
func (r *runner) linkTests(ctx context.Context, name, folder string) (string, error) {
	which, flags := mutated, []string{"-overlay", filepath.Join(r.dir, overlay)}
	if name == "" {
		which, flags = control, nil
	}
	binary := r.binary(which + "-" + strings.ReplaceAll(folder, "/", "-") + ".test")
	r.linking.Lock()
	defer r.linking.Unlock()
	err, linked := r.tests[binary]
	if !linked {
		err = r.compile(ctx, append([]string{"test", "-c", "-o", binary}, flags...), folder)
		r.tests[binary] = err
	}
	return binary, err
}

// control runs the simulator as it is with everything that the mutants were run with.
func (r *runner) control(ctx context.Context, mutants []Mutant) Outcome {
	var all [][]string
	for _, m := range append(slices.Clone(mutants), Mutant{}) {
		for _, args := range r.budgets(m) {
			if !slices.ContainsFunc(all, func(a []string) bool { return slices.Equal(a, args) }) {
				all = append(all, args)
			}
		}
	}
	var o Outcome
	r.search(ctx, &o, all)
	for _, m := range mutants {
		if len(m.Test) > 0 && o.Violation == nil && o.Err == nil {
			o.Violation, o.Err = r.test(ctx, "", m.Test)
		}
	}
	return o
}

func (r *runner) budgets(m Mutant) [][]string {
	if len(m.Find) == 0 {
		return r.cfg.Budgets
	}
	return append([][]string{m.Find}, r.cfg.Budgets...)
}

// The simulator as it is, and with all mutants.
const (
	control = "control"
	mutated = "mutated"
)

// overlay is the file that has the sources with all mutants built.
const overlay = "overlay.json"

func (r *runner) binary(which string) string { return filepath.Join(r.dir, which) }

// build links the simulator twice.
func (r *runner) build(ctx context.Context, mutants []Mutant) error {
	sources, err := graft(r.cfg.Root, mutants)
	if err != nil {
		return err
	}
	replace := map[string]string{}
	for file, source := range sources {
		patched := filepath.Join(r.dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(patched, source, 0o600); err != nil {
			return err
		}
		replace[filepath.Join(r.cfg.Root, filepath.FromSlash(file))] = patched
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	replaced := filepath.Join(r.dir, overlay)
	if err := os.WriteFile(replaced, text, 0o600); err != nil {
		return err
	}
	if err := r.link(ctx, r.binary(control)); err != nil {
		return fmt.Errorf("the simulator does not build: %w", err)
	}
	if err := r.link(ctx, r.binary(mutated), "-overlay", replaced); err != nil {
		return fmt.Errorf("the mutants do not build: %w", err)
	}
	return nil
}

func (r *runner) link(ctx context.Context, binary string, flags ...string) error {
	return r.compile(ctx, append([]string{"build", "-o", binary}, flags...), r.cfg.Package)
}

// compile has go build or test a package.
func (r *runner) compile(ctx context.Context, args []string, folder string) error {
	args = append(args, "-buildvcs=false", "-ldflags=-s -w", "./"+filepath.ToSlash(folder))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.cfg.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// search runs a binary with one list of arguments after the other until it finds something.
func (r *runner) search(ctx context.Context, o *Outcome, budgets [][]string) {
	begun := time.Now()
	defer func() { o.Ran = time.Since(begun) }()
	for _, args := range budgets {
		found, schedules, err := r.simulate(ctx, o.Mutant, args)
		o.Schedules += schedules
		if o.Violation, o.Err = found, err; found != nil || err != nil {
			return
		}
	}
}

// violated is the exit code of a simulator that has found a violation.
const violated = 2

var (
	// The simulator's output; its own test holds it to that.
	violationLine = regexp.MustCompile(`(?m)^VIOLATION (I[0-9]+|panic)\b.*$`)
	schedulesText = regexp.MustCompile(`(?m)^([0-9]+) schedules,`)
)

func (r *runner) simulate(ctx context.Context, m Mutant, args []string) (*Violation, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	binary := r.binary(mutated)
	if m.Name == "" {
		binary = r.binary(control)
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), chosen+"="+m.Name)
	cmd.Dir = r.cfg.Root
	out, err := cmd.CombinedOutput()
	var schedules int64
	if all := schedulesText.FindAllSubmatch(out, -1); len(all) > 0 {
		schedules, _ = strconv.ParseInt(string(all[len(all)-1][1]), 10, 64)
	}
	line := violationLine.FindSubmatch(out)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, schedules, fmt.Errorf("concord-sim %s: %w", strings.Join(args, " "), ctx.Err())
	case err == nil:
		return nil, schedules, nil
	case errors.As(err, &exit) && exit.ExitCode() == violated && line != nil:
		return &Violation{Invariant: string(line[1]), Args: args, Line: string(line[0])}, schedules, nil
	}
	return nil, schedules, fmt.Errorf("concord-sim %s: %w: %s", strings.Join(args, " "), err, tail(string(out)))
}

// tail returns the last lines of an output.
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}
