package process

import (
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
)

// Program is a program that can be started again after it has ended. Its output, of all its runs,
// goes to one file.
type Program struct {
	Name, Log string
	// Command makes the command of the next run.
	Command func() (*exec.Cmd, error)

	run atomic.Pointer[Process]
}

// Start runs the program, which must not run already.
func (p *Program) Start() error {
	if p.Run() != nil && !p.Ended() {
		return fmt.Errorf("%s runs already", p.Name)
	}
	cmd, err := p.Command()
	if err != nil {
		return err
	}
	run, err := Start(p.Name, cmd, p.Log)
	if err == nil {
		p.run.Store(run)
	}
	return err
}

// Run returns the current run, or else the last one; nil before the first.
func (p *Program) Run() *Process { return p.run.Load() }

// Ended says that the program has been started and does not run any more.
func (p *Program) Ended() bool { return p.Run() != nil && p.Run().Ended() }

// Kill ends the program at once, if it runs.
func (p *Program) Kill() error {
	if p.Run() == nil {
		return nil
	}
	return p.Run().Kill()
}

// Output returns the output of all runs so far.
func (p *Program) Output() string {
	raw, err := os.ReadFile(p.Log)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Sprintf("(%v)", err)
	}
	return string(raw)
}
