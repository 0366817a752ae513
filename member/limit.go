package member

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// minLimit bounds from below how long an attempt to report may take, and a list that many
	// of them share: a server under load answers some requests after seconds.
	minLimit = 10 * time.Second
	// maxLimit bounds it from above, before doublings: Leases may be long, but a request that hangs has to be noticed.
	maxLimit = time.Minute
	// limitDoublings is the maximum number of times that the limit is doubled, once after each failed attempt: a list
	// that takes longer than the limit has to succeed at last.
	limitDoublings = 3
)

// errTooLong is why an attempt was given up that hangs. Its outcome is not known, as if its
// answer had been lost.
var errTooLong = errors.New("no end of it in time")

// limit returns how long an attempt for these claims may take. A server that cannot report for the duration of a Lease
// keeps writers waiting as long as one that has crashed.
func (m *Member) limit(claims ...claim) time.Duration {
	failures := 0
	for _, c := range claims {
		failures = max(failures, c.failures)
	}
	return max(minLimit, min(m.cfg.LeaseDuration, maxLimit)) << min(failures, limitDoublings)
}

// within runs do with a context that ends after the limit. Only Run limits: callers of single
// steps bring a context of their own.
func (m *Member) within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	if !m.limits.Load() {
		return do(ctx)
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := m.cfg.Clock.NewTimer(limit)
	go func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel(errTooLong)
		case <-limited.Done():
		}
	}()
	err := do(limited)
	if err != nil && errors.Is(context.Cause(limited), errTooLong) {
		return fmt.Errorf("%w, %s: %w", errTooLong, limit, err)
	}
	return err
}

// limited is the result of read within the limit.
func limited[T any](ctx context.Context, m *Member, limit time.Duration, read func(context.Context) (T, error)) (T, error) {
	var got T
	err := m.within(ctx, limit, func(ctx context.Context) (err error) {
		got, err = read(ctx)
		return err
	})
	return got, err
}
