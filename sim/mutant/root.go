package mutant

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// module is the module whose sources the mutants change.
const module = "github.com/concord-dev/concord"

// Root returns the folder of Concord's sources, which the working directory must be in.
func Root(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "", fmt.Errorf("mutants are built from the sources, which needs a Go toolchain: %w", err)
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}}\t{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("mutants are built from the sources: run this in Concord's repository (go list -m: %s)", said(err))
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	if path != module || dir == "" {
		return "", fmt.Errorf("mutants are built from the sources: run this in Concord's repository, not in that of %s", path)
	}
	return dir, nil
}

// said is the error output of a command that failed, or else the reason why it failed.
func said(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return strings.Join(strings.Fields(string(exit.Stderr)), " ")
	}
	return err.Error()
}
