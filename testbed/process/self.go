package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// roleVariable is the environment variable with the role in which Self has started this program.
const roleVariable = "CONCORD_ROLE"

// Self returns a command that runs this program again in a role. The program has to call Serve
// with a function for it.
func Self(role string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	if err != nil {
		cmd.Err = fmt.Errorf("own program: %w", err)
	}
	return cmd
}

// Serve runs the function for the role in which Self has started this process, and then ends the process;
// without such a role it returns at once. The context of the function ends with SIGINT and SIGTERM.
func Serve(programs map[string]func(ctx context.Context, args []string) error) {
	role := os.Getenv(roleVariable)
	run, ok := programs[role]
	if !ok {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Go runs the go command, and returns what it prints.
func Go(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, complaints.String())
	}
	return strings.TrimSpace(string(out)), nil
}
