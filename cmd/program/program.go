// Package program runs the command of a program to its end.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Main executes a command, and ends the process if that fails: with the code that the error has. An error without
// a text has said all there is to say. A signal ends the command's context, and a second one the process.
func Main(name string, cmd *cobra.Command) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as it is under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := cmd.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(os.Stderr, name+":", text)
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		os.Exit(coded.ExitCode())
	}
	os.Exit(1)
}

// No is how a command ends whose answer is no: with this text, if any, and code 2.
type No string

// Error implements error.
func (n No) Error() string { return string(n) }

// ExitCode is the process's.
func (No) ExitCode() int { return 2 }

// PrintJSON prints a value for -o json.
func PrintJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
