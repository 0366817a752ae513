package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary run as the child processes of these tests, each named for its behaviour.
func TestMain(m *testing.M) {
	Serve(map[string]func(context.Context, []string) error{
		"polite": func(ctx context.Context, args []string) error {
			fmt.Println("ready", strings.Join(args, " "))
			<-ctx.Done()
			return nil
		},
		"deaf": func(context.Context, []string) error {
			signal.Ignore(syscall.SIGTERM)
			never := make(chan os.Signal, 1)
			signal.Notify(never, syscall.SIGUSR1)
			fmt.Println("ready")
			<-never
			return nil
		},
		"failing": func(context.Context, []string) error {
			for i := range 100 {
				fmt.Println("line", i)
			}
			return errors.New("it fails")
		},
		"reserving": func(_ context.Context, args []string) error {
			port, err := strconv.Atoi(args[0])
			if err == nil {
				_, err = reserve(port)
			}
			return err
		},
	})
	os.Exit(m.Run())
}

func startChild(t *testing.T, how string) *Process {
	t.Helper()
	p, err := Start("child", Self(how, "an", "argument"), filepath.Join(t.TempDir(), "log"))
	must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func awaitLog(t *testing.T, p *Process, text string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(p.Tail(), text) {
		select {
		case <-deadline:
			t.Fatalf("the log has no %q:\n%s", text, p.Tail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestTerminate(t *testing.T) {
	p := startChild(t, "polite")
	awaitLog(t, p, "ready an argument")
	if err := p.Terminate(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
}

func TestKillWhenPaused(t *testing.T) {
	p := startChild(t, "deaf")
	awaitLog(t, p, "ready")
	if err := p.Terminate(t.Context(), 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not end within 10ms") {
		t.Errorf("error %v", err)
	}
	must(t, p.Signal(syscall.SIGSTOP))
	must(t, p.Kill())
	if err := syscall.Kill(p.PID(), 0); err == nil {
		t.Error("the process is still there")
	}
}

func TestFailureShowsTheEndOfTheLog(t *testing.T) {
	p := startChild(t, "failing")
	<-p.Done()
	err := p.Failure()
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "line 99") || strings.Contains(err.Error(), "line 50") {
		t.Errorf("error %v", err)
	}
	if _, err := Start("child", exec.Command(filepath.Join(t.TempDir(), "nothing")), filepath.Join(t.TempDir(), "log")); err == nil || !strings.Contains(err.Error(), "start child") {
		t.Errorf("error %v", err)
	}
}

// TestAwait: a process that ends is not waited for, and a look that fails is repeated.
func TestAwait(t *testing.T) {
	looks := 0
	never := errors.New("never")
	if err := startChild(t, "polite").Await(t.Context(), time.Millisecond, func(context.Context) error {
		if looks++; looks < 3 {
			return never
		}
		return nil
	}); err != nil || looks != 3 {
		t.Errorf("error %v after %d looks", err, looks)
	}
	if err := startChild(t, "failing").Await(t.Context(), time.Millisecond, func(context.Context) error { return never }); err == nil || !strings.Contains(err.Error(), "child stopped: exit status 1") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := startChild(t, "deaf").Await(ctx, time.Millisecond, func(context.Context) error { return never }); !errors.Is(err, never) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// TestOutputOfOneRun: the log goes on over several runs, Output returns only that of one run.
func TestOutputOfOneRun(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for run := range 2 {
		p, err := Start("child", Self("failing"), log)
		must(t, err)
		<-p.Done()
		output, err := p.Output()
		if n := strings.Count(output, "line 99"); err != nil || n != 1 {
			t.Errorf("run %d: %d last lines, error %v", run, n, err)
		}
	}
}

// TestCrashed: an end that nobody wanted is a crash, also if somebody kills the process afterwards.
func TestCrashed(t *testing.T) {
	failing := startChild(t, "failing")
	<-failing.Done()
	if err := failing.Kill(); err != nil || failing.Crashed() == nil {
		t.Errorf("it has ended by itself: %v, %v", err, failing.Crashed())
	}
	if failing.Expect(); failing.Crashed() != nil {
		t.Errorf("its end was expected: %v", failing.Crashed())
	}
	polite := startChild(t, "polite")
	if polite.Crashed() != nil {
		t.Errorf("it runs: %v", polite.Crashed())
	}
	if err := polite.Kill(); err != nil || polite.Crashed() != nil {
		t.Errorf("it was killed: %v, %v", err, polite.Crashed())
	}
}

// TestProgram: a program runs again, not twice at a time, and keeps all its output.
func TestProgram(t *testing.T) {
	how := "failing"
	p := &Program{Name: "child", Log: filepath.Join(t.TempDir(), "log"), Command: func() (*exec.Cmd, error) { return Self(how), nil }}
	if p.Ended() || p.Run() != nil || p.Kill() != nil || p.Output() != "" {
		t.Error("it was never started")
	}
	for range 2 {
		must(t, p.Start())
		<-p.Run().Done()
	}
	if n := strings.Count(p.Output(), "line 99\n"); n != 2 || !p.Ended() {
		t.Errorf("the output is of %d runs, ended: %t", n, p.Ended())
	}
	how = "deaf"
	must(t, p.Start())
	if err := p.Start(); err == nil {
		t.Error("it runs twice")
	}
	if err := p.Kill(); err != nil || p.Run().Crashed() != nil {
		t.Errorf("it was killed: %v, %v", err, p.Run().Crashed())
	}
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestFreePort: no port comes twice, and a server can listen on each of them.
func TestFreePort(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := FreePort()
		must(t, err)
		if seen[port] || port < firstPort || port >= lastPort {
			t.Fatalf("port %d after %v", port, seen)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		must(t, err)
		defer func() { _ = listener.Close() }()
	}
}

// TestFreePortIsReserved: no other process is given a port that was given to this one.
func TestFreePortIsReserved(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing is reserved there
	}
	port, err := FreePort()
	must(t, err)
	for other, want := range map[int]string{port: "address already in use", lastPort + os.Getpid(): ""} { // the other is no port
		if out, err := Self("reserving", strconv.Itoa(other)).CombinedOutput(); (err == nil) != (want == "") || !strings.Contains(string(out), want) {
			t.Errorf("another process reserves port %d: %v, %s", other, err, out)
		}
	}
}

// TestUsed: Linux tells what a running process uses, and nothing of one that has ended.
func TestUsed(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing is told there
	}
	p := startChild(t, "polite")
	awaitLog(t, p, "ready")
	must(t, p.ResetPeak())
	for name, of := range map[string]func() (int64, error){"resident": p.Resident, "peak": p.PeakResident} {
		if bytes, err := of(); err != nil || bytes < 1<<20 || bytes > 1<<30 {
			t.Errorf("%s memory: %d bytes, %v", name, bytes, err)
		}
	}
	if used, err := p.CPU(); err != nil || used > time.Minute {
		t.Errorf("processor time: %s, %v", used, err)
	}
	must(t, p.Kill())
	if used, err := p.CPU(); err == nil || !strings.Contains(err.Error(), "child") {
		t.Errorf("after its end: %s, %v", used, err)
	}
}
