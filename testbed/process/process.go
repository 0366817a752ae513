// Package process runs programs that end together with the one that started them, with their output in log files, and
// finds ports for them.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is one run of a program.
type Process struct {
	name    string
	cmd     *exec.Cmd
	log     string
	from    int64 // where this run's output begins in the log
	started time.Time
	done    chan struct{} // closed when the process has ended
	wanted  atomic.Bool   // the end of the process is expected (Expect)
	err     error         // why the process has ended, once done is closed
}

// Start runs a program in a group of its own. Its output goes to the end of a log file, and its
// errors also to cmd.Stderr where that is set. Where the system can do so, it is killed when this
// program ends.
func Start(name string, cmd *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	from, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log of %s: %w", name, err), file.Close())
	}
	p := &Process{name: name, cmd: cmd, log: log, from: from, done: make(chan struct{})}
	p.cmd.Stdout = file
	if p.cmd.Stderr == nil {
		p.cmd.Stderr = file
	} else {
		p.cmd.Stderr = io.MultiWriter(file, p.cmd.Stderr)
	}
	p.cmd.SysProcAttr = ownGroup()
	started := make(chan error, 1)
	go func() {
		// The kernel kills the child when the thread that started it ends (Pdeathsig), so this goroutine keeps its
		// thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.started = time.Now()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
		_ = file.Close()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Started is when the process was started.
func (p *Process) Started() time.Time { return p.started }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended says whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Failed says why the process has ended; nil as long as it runs.
func (p *Process) Failed() error {
	if !p.Ended() {
		return nil
	}
	return p.Failure()
}

// Expect notes that the end of the process is no failure. Terminate and Kill do so themselves, if it still runs.
func (p *Process) Expect() { p.wanted.Store(true) }

func (p *Process) expectFromNow() {
	if !p.Ended() {
		p.Expect()
	}
}

// Crashed says why the process has ended, unless its end was expected (Expect).
func (p *Process) Crashed() error {
	if p.wanted.Load() {
		return nil
	}
	return p.Failed()
}

// ExitCode is the exit code of the process, -1 if a signal ended it or it still runs.
func (p *Process) ExitCode() int {
	if !p.Ended() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal. It is no error if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", s, p.name, err)
	}
	return nil
}

// Terminate asks the process to end and waits until it has, which must be without an error.
func (p *Process) Terminate(ctx context.Context, limit time.Duration) error {
	p.expectFromNow()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		if p.err != nil {
			return p.Failure()
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s does not end within %s of SIGTERM; %s", p.name, limit, p.Tail())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Kill ends the process at once, also when it is paused, and waits until it has ended.
func (p *Process) Kill() error {
	p.expectFromNow()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Failure describes a process that has ended by itself.
func (p *Process) Failure() error {
	reason := "it has ended"
	if p.err != nil {
		reason = p.err.Error()
	}
	return fmt.Errorf("%s stopped: %s; %s", p.name, reason, p.Tail())
}

// Output returns the output of this run of the process so far.
func (p *Process) Output() (string, error) { return p.read(p.from) }

func (p *Process) read(from int64) (string, error) {
	file, err := os.Open(p.log)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return "", err
	}
	content, err := io.ReadAll(file)
	return string(content), err
}

// Tail returns the last lines of the log with an introduction, or says why the log cannot be read.
func (p *Process) Tail() string {
	const lines, size = 15, 16 << 10
	from := p.from
	if info, err := os.Stat(p.log); err == nil {
		from = max(from, info.Size()-size)
	}
	content, err := p.read(from)
	if err != nil {
		content = err.Error()
	}
	all := strings.Split(strings.TrimSpace(content), "\n")
	return "the end of its log:\n  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
