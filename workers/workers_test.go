package workers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

func logged(t *testing.T) (context.Context, func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return klog.NewContext(t.Context(), logger), logger.GetSink().(ktesting.Underlier).GetBuffer().String
}

func counted(t *testing.T, worker string) float64 {
	t.Helper()
	n, err := testutil.GetCounterMetricValue(panics.WithLabelValues(worker))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDo(t *testing.T) {
	ctx, log := logged(t)
	failed := errors.New("failed")
	if err := Do(ctx, "sound", func() error { return failed }); !errors.Is(err, failed) || errors.Is(err, ErrPanicked) {
		t.Errorf("an error becomes %v", err)
	}
	err := Do(ctx, "unsound", func() error {
		var nowhere *struct{ n int }
		nowhere.n = 1
		return nil
	})
	if !errors.Is(err, ErrPanicked) || !strings.Contains(err.Error(), "unsound") || !strings.Contains(err.Error(), "nil pointer") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a panic becomes %v", err)
	}
	if text := log(); !strings.Contains(text, "workers_test.go") || !strings.Contains(text, "unsound") {
		t.Errorf("logged is %q, without where", text)
	}
	if sound, unsound := counted(t, "sound"), counted(t, "unsound"); sound != 0 || unsound != 1 {
		t.Errorf("counted are %v of the sound one and %v", sound, unsound)
	}
	gathered, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range gathered {
		if family.GetName() == "concord_worker_panics_total" {
			return
		}
	}
	t.Error("the counter is not served")
}

// TestLoop: a function that panics is called again after longer and longer pauses, each time with a
// new context, which ends with the attempt. A function that returns is not called again.
func TestLoop(t *testing.T) {
	ctx, _ := logged(t)
	var delays int
	var attempts []context.Context
	loop(ctx, "loop", func() time.Duration { delays++; return time.Microsecond }, func(ctx context.Context) {
		attempts = append(attempts, ctx)
		if len(attempts) < 4 {
			panic("again")
		}
	})
	if len(attempts) != 4 || delays != 3 || counted(t, "loop") != 3 {
		t.Errorf("%d attempts, %d pauses, %v counted", len(attempts), delays, counted(t, "loop"))
	}
	for i, attempt := range attempts {
		if attempt.Err() == nil {
			t.Errorf("what attempt %d has started goes on", i)
		}
	}
	if ctx.Err() != nil {
		t.Error("the loop's own context has ended")
	}
	delay := again.DelayWithReset(clock.RealClock{}, wentWell)
	for last := time.Duration(0); last < time.Minute/2; {
		next := delay()
		if next <= last {
			t.Fatalf("after %v it waits %v", last, next)
		}
		last = next
	}
}

// TestLoopStops: a loop whose context ends does not wait for its next attempt.
func TestLoopStops(t *testing.T) {
	logs, _ := logged(t)
	ctx, cancel := context.WithCancel(logs)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		loop(ctx, "stopped", func() time.Duration { cancel(); return time.Hour }, func(context.Context) { panic("once") })
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it waits for its next attempt")
	}
	if n := counted(t, "stopped"); n != 1 {
		t.Errorf("%v attempts", n)
	}
}

func TestGo(t *testing.T) {
	ctx, log := logged(t)
	panicked := make(chan struct{})
	Go(ctx, "alone", func() {
		defer close(panicked)
		panic("nobody is there")
	})
	<-panicked
	deadline := time.After(time.Minute)
	for tick := time.Tick(time.Millisecond); counted(t, "alone") == 0 || !strings.Contains(log(), "nobody is there"); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("it is not told: %q", log())
		}
	}
}
