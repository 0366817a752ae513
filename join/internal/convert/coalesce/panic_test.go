package coalesce

import (
	"context"
	"errors"
	"testing"

	"github.com/concord-dev/concord/workers"
)

// Everybody for whom a call is made that panics is told, and the next calls are made.
func TestPanic(t *testing.T) {
	calls := Calls[string, string]{
		Fits: func([]string, string) bool { return true },
		Make: func(_ context.Context, batch []string) ([]string, error) {
			if batch[0] == "bad" {
				panic("no")
			}
			return batch, nil
		},
	}
	if _, err := calls.Do(t.Context(), "bad"); !errors.Is(err, workers.ErrPanicked) {
		t.Errorf("a call that panics: %v", err)
	}
	if out, err := calls.Do(t.Context(), "good"); out != "good" || err != nil {
		t.Errorf("the next call: %q %v", out, err)
	}
}
