package stage

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/concord-dev/concord/process"
)

// clockTicks is how many of them /proc counts to a second, on every platform of Go.
const clockTicks = 100

// Program is a process whose memory and processor time are measured.
type Program struct {
	name    string
	process *process.Process
}

func (s *Program) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.process.PID()), name)
}

// Output returns the log of the running process.
func (s *Program) Output() (string, error) { return s.process.Output() }

// Failed says why the process has ended; nil as long as it runs.
func (s *Program) Failed() error {
	select {
	case <-s.process.Done():
		return s.process.Failure()
	default:
		return nil
	}
}

// Stop ends the process in an orderly way, if it was started.
func (s *Program) Stop(ctx context.Context) error {
	if s.process == nil {
		return nil
	}
	return s.process.Terminate(ctx, stopLimit)
}

// Kill ends the process at once.
func (s *Program) Kill() error { return s.process.Kill() }

// CPU returns the processor time that the process has used.
func (s *Program) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(s.proc("stat"))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", s.name, err)
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

// Resident returns the memory that the process holds, in bytes.
func (s *Program) Resident() (int64, error) {
	statm, err := os.ReadFile(s.proc("statm"))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", s.name, err)
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc says %q", statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// ResetPeak lets PeakResident count from now on.
func (s *Program) ResetPeak() error {
	if err := os.WriteFile(s.proc("clear_refs"), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the peak memory of %s: %w", s.name, err)
	}
	return nil
}

// PeakResident returns the most memory that the process held since its start or the last
// ResetPeak, in bytes.
func (s *Program) PeakResident() (int64, error) {
	status, err := os.ReadFile(s.proc("status"))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", s.name, err)
	}
	return peakOf(status)
}

func peakOf(status []byte) (int64, error) {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc says %q", status)
}

// Descriptors are a process's open files.
type Descriptors struct {
	// Open counts all, Etcd the connections to the etcd among them: a server has no other
	// unix sockets that are connected.
	Open, Etcd int
}

// Descriptors counts the process's open files.
func (s *Program) Descriptors() (Descriptors, error) {
	directory := s.proc("fd")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return Descriptors{}, fmt.Errorf("open files of %s: %w", s.name, err)
	}
	table, err := os.ReadFile(s.proc("net/unix"))
	if err != nil {
		return Descriptors{}, fmt.Errorf("unix sockets: %w", err)
	}
	connected := connectedUnix(table)
	found := Descriptors{Open: len(entries)}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(directory, entry.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		if connected[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] {
			found.Etcd++
		}
	}
	return found, nil
}

// connectedUnix returns the inodes of the connected stream sockets in /proc/net/unix:
//
//	Num RefCount Protocol Flags Type St Inode Path
func connectedUnix(table []byte) map[string]bool {
	const stream, connected = "0001", "03"
	inodes := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 7 && fields[4] == stream && fields[5] == connected {
			inodes[fields[6]] = true
		}
	}
	return inodes
}
