package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Stage is the directory in which clusters run.
type Stage struct {
	dir, program string

	mu       sync.Mutex
	clusters map[*Cluster]bool
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
	return &Stage{dir: dir, program: program, clusters: map[*Cluster]bool{}}, nil
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
