package store

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"
)

// Limits of one call of the store, and waits before a failed call is repeated.
const (
	callTimeout = 30 * time.Second
	minBackoff  = 20 * time.Millisecond
	maxBackoff  = time.Second
	// hinderedAfter is for how long a run gets on in nothing before it says why.
	hinderedAfter = 5 * time.Second
)

// patience is how long to wait for something that is unavailable.
type patience struct {
	clock clock.Clock
	bound time.Duration
	// told, if not nil, is told the error before each wait, and nil at the answer after it.
	told func(error)
}

// patiently makes a call of the store again while the store is unavailable.
func (p patience) patiently(ctx context.Context, call func(context.Context) error) error {
	return p.waiting(ctx, func(ctx context.Context) error { return within(ctx, call) })
}

// waiting makes a call again while its callee is unavailable.
func (p patience) waiting(ctx context.Context, call func(context.Context) error) error {
	var since time.Time
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := call(ctx)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrKeysUnavailable) || ctx.Err() != nil {
			if !since.IsZero() && p.told != nil {
				p.told(nil)
			}
			return err
		}
		now := p.clock.Now()
		if since.IsZero() {
			since = now
		}
		if errors.Is(err, errFull) {
			since = now
		} else if now.Add(backoff).Sub(since) > p.bound {
			return err
		}
		if p.told != nil {
			p.told(err)
		}
		if waitErr := wait(ctx, p.clock, backoff); waitErr != nil {
			return errors.Join(waitErr, err)
		}
	}
}

// within makes a call that is unavailable if it takes too long.
func within(ctx context.Context, call func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := call(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return errors.Join(ErrUnavailable, err)
	}
	return err
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, c clock.Clock, d time.Duration) error {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
