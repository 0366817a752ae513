package stage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// The servers' ports are below those that the kernel gives to connections, so that none
// is taken while its server restarts.
const firstPort, lastPort = 20000, 32000

// Stage is the directory in which clusters run.
type Stage struct {
	dir, program string

	mu       sync.Mutex
	clusters map[*Cluster]bool
	ports    map[int]bool
}

// New makes an empty stage. It has to be closed.
func New() (*Stage, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("own program: %w", err)
	}
	dir, err := os.MkdirTemp("", "concord-bench-")
	if err != nil {
		return nil, fmt.Errorf("temporary directory (set TMPDIR to one that can be written): %w", err)
	}
	return &Stage{dir: dir, program: program, clusters: map[*Cluster]bool{}, ports: map[int]bool{}}, nil
}

// Clear closes the clusters that are left.
func (s *Stage) Clear() error {
	s.mu.Lock()
	var open []*Cluster
	for c := range s.clusters {
		open = append(open, c)
	}
	s.mu.Unlock()
	var errs []error
	for _, c := range open {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Close ends every process and removes every file.
func (s *Stage) Close() error {
	err := s.Clear()
	if removeErr := os.RemoveAll(s.dir); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("remove the benchmark's files: %w", removeErr))
	}
	return err
}

func (s *Stage) path(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

// port finds a free port that no other server of the stage has.
func (s *Stage) port() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last error
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if s.ports[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("port %d: %w", port, err)
		}
		s.ports[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between %d and %d: %w", firstPort, lastPort, last)
}
