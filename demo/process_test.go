package demo

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes the test binary a child process that does what it says.
const childVariable = "CONCORD_DEMO_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "polite":
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Println("ready", strings.Join(os.Args[1:], " "))
		<-terminated
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		select {}
	case "failing":
		for i := range 100 {
			fmt.Println("line", i)
		}
		os.Exit(3)
	}
}

func startChild(t *testing.T, how string) *process {
	t.Helper()
	t.Setenv(childVariable, how)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := startProcess("child", executable, []string{"an", "argument"}, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.kill() })
	return p
}

func awaitLog(t *testing.T, p *process, text string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(logTail(p.log), text) {
		select {
		case <-deadline:
			t.Fatalf("the log has no %q:\n%s", text, logTail(p.log))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestProcessTerminates(t *testing.T) {
	p := startChild(t, "polite")
	awaitLog(t, p, "ready an argument")
	if err := p.terminate(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
}

func TestProcessIsKilledAlsoWhenPaused(t *testing.T) {
	p := startChild(t, "deaf")
	awaitLog(t, p, "ready")
	if err := p.terminate(t.Context(), 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not end within 10ms") {
		t.Errorf("error %v", err)
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.cmd.Process.Pid, 0); err == nil {
		t.Error("the process is still there")
	}
}

func TestProcessFailureShowsTheEndOfItsLog(t *testing.T) {
	p := startChild(t, "failing")
	<-p.done
	err := p.failure()
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "line 99") || strings.Contains(err.Error(), "line 50") {
		t.Errorf("error %v", err)
	}
	if _, err := startProcess("child", filepath.Join(t.TempDir(), "nothing"), nil, filepath.Join(t.TempDir(), "log")); err == nil || !strings.Contains(err.Error(), "start child") {
		t.Errorf("error %v", err)
	}
}

// TestRunReportsAServerThatDoesNotStart asserts that nothing is left behind, too.
func TestRunReportsAServerThatDoesNotStart(t *testing.T) {
	t.Setenv(childVariable, "failing")
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := Run(t.Context(), Config{Objects: MinObjects})
	if err == nil || !strings.Contains(err.Error(), "server-1 stopped: exit status 3") {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Objects: 3}, "at least 4 objects"},
		{Config{Objects: -1}, "at least 4 objects"},
		{Config{Writers: -1}, "writers must be positive"},
		{Config{LeaseDuration: 1500 * time.Millisecond}, "whole seconds"},
		{Config{LeaseDuration: time.Second}, "at least 3s"},
	} {
		err := tt.cfg.Validate()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Validate(%+v) = %v, want %q", tt.cfg, err, tt.want)
		}
	}
}
