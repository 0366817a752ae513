package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/concord-dev/concord/testbed/process"
)

// poll is the time between two checks of a condition.
const poll = 50 * time.Millisecond

// Eventually waits until check returns nil and returns how long that took. After the
// timeout the test fails with what, and check's last error.
func Eventually(t testing.TB, timeout time.Duration, what string, check func(ctx context.Context) error) time.Duration {
	t.Helper()
	started := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := process.Until(ctx, poll, check); err != nil {
		t.Fatalf("%s: not after %v: %v", what, timeout, err)
	}
	return time.Since(started)
}

// EventuallyEach is Eventually for requests that a server may never answer: a call of check ends after
// the time look, and is then made again.
func EventuallyEach(t testing.TB, timeout, look time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	Eventually(t, timeout, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, look)
		defer cancel()
		return check(ctx)
	})
}
