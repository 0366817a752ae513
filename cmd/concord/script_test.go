package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"concord": main})
}

// TestScripts runs testdata/script. Beside testscript's own commands there is
//
//	refused <command> <argument>...
//
// which expects exit code 1, one line on stderr, nothing on stdout, and that no file was made.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"refused": refused},
	})
}

func refused(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) == 0 {
		ts.Fatalf("usage: refused command [argument...]")
	}
	before, err := os.ReadDir(ts.MkAbs("."))
	ts.Check(err)
	err = ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		ts.Fatalf("ended with %v, want exit code 1", err)
	}
	if lines := strings.Count(ts.ReadFile("stderr"), "\n"); lines != 1 {
		ts.Fatalf("%d lines on stderr, want one", lines)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("printed %q", out)
	}
	after, err := os.ReadDir(ts.MkAbs("."))
	ts.Check(err)
	if len(after) != len(before) {
		ts.Fatalf("files were made: %v", after)
	}
}
