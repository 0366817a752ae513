package cluster

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/concord-dev/concord/testbed/process"
)

// tailLines is how much of a process's output is shown when a test fails.
const tailLines = 40

var logs = flag.String("logs", "", "a directory to which the whole output of all processes of a failed test is copied")

// stopTimeout is how long a process may take to end after SIGTERM: a server drains.
const stopTimeout = 60 * time.Second

// Process is a program that can be started again after it ended. The output of all its runs goes to one file.
type Process struct {
	Name string

	t       testing.TB
	program *process.Program
	// errors is what the last run wrote to stderr; read it only after the run has ended.
	errors *strings.Builder
}

// NewProcess returns a process that is not started. It is killed when the test ends; it is
// an error if it ended by itself before. The end of its output is shown if the test has
// failed. All methods are for the goroutine of the test.
func NewProcess(t testing.TB, name, dir string, command func() *exec.Cmd) *Process {
	return adopt(t, &process.Program{Name: name, Log: filepath.Join(dir, name+".log"), Command: func() (*exec.Cmd, error) { return command(), nil }})
}

// adopt makes a program a process of the test, which is examined and killed when the test ends.
func adopt(t testing.TB, program *process.Program) *Process {
	p := &Process{Name: program.Name, t: t, program: program}
	command := program.Command
	program.Command = func() (*exec.Cmd, error) {
		cmd, err := command()
		if err == nil {
			p.errors = &strings.Builder{}
			cmd.Stderr = p.errors
		}
		return cmd, err
	}
	t.Cleanup(func() {
		p.examine()
		p.Kill()
		if t.Failed() {
			t.Logf("the last %d lines of %s:\n%s", tailLines, p.Name, p.tail())
			p.keep()
		}
	})
	return p
}

// examine fails the test if the program has ended by itself, or if its log tells of a defect, for example a panic.
func (p *Process) examine() {
	if p.Run() != nil && p.Run().Crashed() != nil {
		p.t.Errorf("%s has ended by itself: %v", p.Name, p.Run().Crashed())
	}
	for _, line := range strings.Split(p.Output(), "\n") {
		if defect.MatchString(line) {
			p.t.Errorf("%s met a defect of its own: %s", p.Name, line)
		}
	}
}

// defect matches the lines that the libraries log when they have recovered from a panic.
var defect = regexp.MustCompile(`Observed a panic|^panic: |http: panic serving|DATA RACE|fatal error: `)

// Start runs the program.
func (p *Process) Start() {
	p.t.Helper()
	if err := p.program.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// Signal sends a signal to the running program.
func (p *Process) Signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.running().Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// running returns the current run of the program. The test fails if there is none.
func (p *Process) running() *process.Process {
	p.t.Helper()
	if p.Run() == nil || p.Ended() {
		p.t.Fatalf("%s does not run: %s", p.Name, p.tail())
	}
	return p.Run()
}

// Pause stops the program by SIGSTOP, Resume lets it go on.
func (p *Process) Pause()  { p.t.Helper(); p.Signal(syscall.SIGSTOP) }
func (p *Process) Resume() { p.t.Helper(); p.Signal(syscall.SIGCONT) }

// Kill ends the program at once, if it runs.
func (p *Process) Kill() {
	if err := p.program.Kill(); err != nil {
		p.t.Error(err)
	}
}

// Terminate asks the program to end and waits until it has. It has to do so without an
// error.
func (p *Process) Terminate() {
	p.t.Helper()
	if err := p.running().Terminate(context.Background(), stopTimeout); err != nil {
		p.t.Fatal(err)
	}
}

// Result is how a program ended. Code is -1 after a signal.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Wait waits for the program's end. It is not ok if that has not come after the timeout. The result
// has no Stdout.
func (p *Process) Wait(timeout time.Duration) (Result, bool) {
	run := p.Run()
	run.Expect()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-run.Done():
		return Result{Code: run.ExitCode(), Stderr: p.errors.String()}, true
	case <-timer.C:
		return Result{}, false
	}
}

// Run returns the current or the last run of the program.
func (p *Process) Run() *process.Process { return p.program.Run() }

// Ended reports whether the program was started and no longer runs.
func (p *Process) Ended() bool { return p.program.Ended() }

// Output returns the output of all runs of the program so far.
func (p *Process) Output() string { return p.program.Output() }

// keep copies the output to the directory of -logs.
func (p *Process) keep() {
	if *logs == "" {
		return
	}
	file := filepath.Join(*logs, strings.ReplaceAll(p.t.Name(), "/", "-")+"-"+p.Name+".log")
	if err := os.WriteFile(file, []byte(p.Output()), 0o600); err != nil {
		p.t.Logf("keep the log of %s: %v", p.Name, err)
	}
}

func (p *Process) tail() string {
	lines := strings.Split(strings.TrimRight(p.Output(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
