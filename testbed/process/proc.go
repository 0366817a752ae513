package process

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
)

func (p *Process) proc() (procfs.Proc, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return procfs.Proc{}, fmt.Errorf("what /proc says of %s: %w", p.name, err)
	}
	return proc, nil
}

// CPU returns the processor time that the process has used.
func (p *Process) CPU() (time.Duration, error) {
	proc, err := p.proc()
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// ResetPeak makes PeakResident count from now on.
func (p *Process) ResetPeak() error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak memory of %s: %w", p.name, err)
	}
	return nil
}

// Resident returns the memory that the process holds, in bytes.
func (p *Process) Resident() (int64, error) {
	status, err := p.status()
	return int64(status.VmRSS), err
}

// PeakResident returns the most memory that the process held since its start or the last
// ResetPeak, in bytes.
func (p *Process) PeakResident() (int64, error) {
	status, err := p.status()
	return int64(status.VmHWM), err
}

func (p *Process) status() (procfs.ProcStatus, error) {
	proc, err := p.proc()
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return proc.NewStatus()
}
