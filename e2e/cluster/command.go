package cluster

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// commandTimeout is how long a command of the concord program may take.
const commandTimeout = 60 * time.Second

// Command runs concord with the arguments until it ends, with success or without.
func Command(t testing.TB, args ...string) Result {
	t.Helper()
	program := Binary(t)
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("concord %s: %v", strings.Join(args, " "), err)
	}
	return Result{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}
