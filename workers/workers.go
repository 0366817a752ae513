// Package workers keeps a panic in one goroutine from ending the process with all that the
// others do. It is logged and counted (concord_worker_panics_total), and then it is an error
// like others: a call that can fail has failed, and a loop begins again.
package workers

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// ErrPanicked is returned (wrapped) for a function that has panicked.
var ErrPanicked = errors.New("a panic was caught")

// A loop that panics begins again after a second, and after longer and longer up to a minute
// unless it went well for some minutes.
var (
	again     = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 7, Cap: time.Minute}
	wentWell  = 5 * time.Minute
	panics    = metrics.NewCounterVec(&metrics.CounterOpts{Namespace: "concord", Name: "worker_panics_total", Help: "Panics in goroutines of the server, which were caught, by what the goroutine does. Every one is a bug.", StabilityLevel: metrics.ALPHA}, []string{"worker"})
	registers = sync.OnceFunc(func() { legacyregistry.MustRegister(Registerables()...) })
)

// Registerables returns the metrics, which are registered when something panics.
func Registerables() []metrics.Registerable { return []metrics.Registerable{panics} }

// Unwinding is implemented by values of panics that are no bugs and are not caught: the
// simulator ends a process that crashes by one.
type Unwinding interface{ Unwinding() }

// Do calls f in this goroutine. If it panics, that is the error. Locks that f holds without
// defer stay locked.
func Do(ctx context.Context, worker string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(Unwinding); ok {
				panic(r)
			}
			registers()
			panics.WithLabelValues(worker).Inc()
			err = fmt.Errorf("%s: %w: %v", worker, ErrPanicked, r)
			klog.FromContext(ctx).Error(err, "A worker panicked, which is a bug; the server goes on", "worker", worker, "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// Go calls f, once, in a goroutine of its own.
func Go(ctx context.Context, worker string, f func()) {
	go func() { _ = Do(ctx, worker, func() error { f(); return nil }) }()
}

// Loop calls f in this goroutine until it returns. After a panic it is called again, unless
// ctx has ended. Everything that f has started has to end with the context that it is given.
func Loop(ctx context.Context, worker string, f func(context.Context)) {
	registers()
	panics.WithLabelValues(worker) // 0 until something happens, so that a rise can be seen
	loop(ctx, worker, again.DelayWithReset(clock.RealClock{}, wentWell), f)
}

func loop(ctx context.Context, worker string, delay wait.DelayFunc, f func(context.Context)) {
	for attempt(ctx, worker, f) != nil {
		timer := time.NewTimer(delay())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func attempt(ctx context.Context, worker string, f func(context.Context)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return Do(ctx, worker, func() error { f(ctx); return nil })
}
