package claim

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestRewriterPanics: a migration whose rewriter panics is tried again.
func TestRewriterPanics(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int32
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		if calls.Add(1) == 1 {
			panic("a codec has a bug")
		}
		return Result{}, nil
	}
	w.migration(nil)
	runs(t, w)
	w.Eventually("succeeded", func() bool {
		w.clock.Step(time.Second) // the queue waits before the next attempt
		return migrationv1alpha1.True(w.read(), migrationv1alpha1.MigrationSucceeded) != nil
	})
	if n := calls.Load(); n != 2 {
		t.Errorf("%d rewrites, want the one that panicked and another", n)
	}
}
