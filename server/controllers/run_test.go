package controllers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/concord-dev/concord/workers"
)

// TestPanic: a controller that panics ends all controllers of its term, but not the process.
func TestPanic(t *testing.T) {
	ended := make(chan struct{})
	err := runLoops(t.Context(), []loop{
		func(ctx context.Context) { <-ctx.Done(); close(ended) },
		func(context.Context) { panic("a bug") },
	})
	if !errors.Is(err, workers.ErrPanicked) {
		t.Errorf("the term ends with %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("another controller runs on")
	}
}

// TestLoopsEnd: controllers run until their term ends, which is no error.
func TestLoopsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- runLoops(ctx, []loop{func(ctx context.Context) { close(begun); <-ctx.Done() }, func(context.Context) {}})
	}()
	<-begun
	select {
	case err := <-done:
		t.Fatalf("they ended before the term did: %v", err)
	default:
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("they do not end")
	}
}
