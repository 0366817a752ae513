package demo

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestFailed: an error of the demo says what came before it.
func TestFailed(t *testing.T) {
	broken := errors.New("no answer")
	r := &run{step: step{title: "load"}}
	if err := r.failed(t.Context(), broken); !errors.Is(err, broken) || err.Error() != broken.Error() {
		t.Error(err)
	}
	r.facts.Incomplete = []string{"kill: not within 90s"}
	if err := r.failed(t.Context(), broken); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "kill: not within 90s; after that") {
		t.Error(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := r.failed(stopped, broken); !errors.Is(err, context.Canceled) || errors.Is(err, broken) || !strings.Contains(err.Error(), "load") {
		t.Error(err)
	}
}
