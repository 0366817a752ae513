package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child of the demo that ends with it.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

// startProcess runs a program whose output goes to the end of a log file.
func startProcess(name, executable string, args []string, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	p := &process{name: name, cmd: exec.Command(executable, args...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = ownGroup()
	started := make(chan error, 1)
	go func() {
		// The kernel ends the child with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
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

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", s, p.name, err)
	}
	return nil
}

// terminate asks the process to end and waits until it has.
func (p *process) terminate(ctx context.Context, limit time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		if p.err != nil {
			return p.failure()
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s does not end within %s of SIGTERM; the end of its log:\n%s", p.name, limit, logTail(p.log))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the process at once, also when it is paused.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// failure describes a process that has ended by itself.
func (p *process) failure() error {
	reason := "it has ended"
	if p.err != nil {
		reason = p.err.Error()
	}
	return fmt.Errorf("%s stopped: %s; the end of its log:\n%s", p.name, reason, logTail(p.log))
}

const (
	tailLines = 15
	tailBytes = 16 << 10
)

// logTail returns the last lines of a file, or why it cannot be read.
func logTail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := file.Seek(-tailBytes, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-tailLines):], "\n  ")
}
