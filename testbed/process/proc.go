package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTicks is how many clock ticks /proc counts in a second, on every platform of Go.
const clockTicks = 100

func (p *Process) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.PID()), name)
}

// CPU returns the processor time that the process has used.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(p.proc("stat"))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	return cpuOf(stat)
}

// cpuOf reads utime and stime, the 14th and 15th field; the 2nd is the program's name in
// brackets, which may hold anything.
func cpuOf(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc says %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc says %q: %w", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks, nil
}

// ResetPeak makes PeakResident count from now on.
func (p *Process) ResetPeak() error {
	if err := os.WriteFile(p.proc("clear_refs"), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak memory of %s: %w", p.name, err)
	}
	return nil
}

// Resident returns the memory that the process holds, in bytes.
func (p *Process) Resident() (int64, error) { return p.memory("VmRSS:") }

// PeakResident returns the most memory that the process held since its start or the last
// ResetPeak, in bytes.
func (p *Process) PeakResident() (int64, error) { return p.memory("VmHWM:") }

func (p *Process) memory(line string) (int64, error) {
	status, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	return memoryOf(status, line)
}

func memoryOf(status []byte, name string) (int64, error) {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc says %q", status)
}
