package stage

import (
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

// stopLimit bounds how long a process may take to end after SIGTERM: a server drains.
const stopLimit = 60 * time.Second

// process is one run of a child.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	// from is where its output begins in the log, which goes on over several runs.
	from    int64
	started time.Time
	done    chan struct{} // closed when it has ended
	err     error         // why, once done is closed
}

// launch starts a child. The kernel kills it when this program dies.
func launch(name, program string, args, environment []string, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	from, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("log of %s: %w", name, err), file.Close())
	}
	p := &process{name: name, cmd: exec.Command(program, args...), log: log, from: from, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), environment...)
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = ownGroup()
	started := make(chan error, 1)
	go func() {
		// The signal that comes with a parent's death comes with the death of the thread.
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

// kill ends the process at once and waits until it has.
func (p *process) kill() {
	// It fails only for a process that has ended.
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end and waits until it has, without an error.
func (p *process) stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	select {
	case <-p.done:
		if p.err != nil {
			return p.failure("ended with " + p.err.Error())
		}
		return nil
	case <-ctx.Done():
		return p.failure("does not end: " + ctx.Err().Error())
	}
}

// failure describes what is wrong with a process and what it last said.
func (p *process) failure(what string) error {
	const lines = 15
	text, err := p.output()
	if err != nil {
		text = err.Error()
	}
	all := strings.Split(strings.TrimSpace(text), "\n")
	return fmt.Errorf("%s %s; the end of its log:\n  %s", p.name, what, strings.Join(all[max(0, len(all)-lines):], "\n  "))
}

// output returns what this run of the process has said.
func (p *process) output() (string, error) {
	file, err := os.Open(p.log)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(p.from, io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(file)
	return string(text), err
}
