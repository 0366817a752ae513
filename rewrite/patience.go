package rewrite

import (
	"context"
	"errors"
	"time"
)

// How long one call of the store may take, and how long to wait before one that failed is
// made again.
const (
	callTimeout = 30 * time.Second
	minBackoff  = 20 * time.Millisecond
	maxBackoff  = time.Second
)

// patiently makes a call of the store again while the store is unavailable, for at most
// Options.Patience.
func (r *run) patiently(ctx context.Context, call func(context.Context) error) error {
	return r.waiting(ctx, func(ctx context.Context) error { return within(ctx, call) })
}

// waiting calls again while what is called is unavailable, for at most Options.Patience.
func (r *run) waiting(ctx context.Context, call func(context.Context) error) error {
	var since time.Time
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := call(ctx)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrKeysUnavailable) || ctx.Err() != nil {
			return err
		}
		now := r.opts.Clock.Now()
		if since.IsZero() {
			since = now
		}
		if now.Add(backoff).Sub(since) > r.opts.Patience {
			return err
		}
		if waitErr := wait(ctx, r.opts.Clock, backoff); waitErr != nil {
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

// commit is patient. Where the store did not say whether it has written, the keys tell:
// they have changed then, and are judged anew.
func (r *run) commit(ctx context.Context, fence Fence, puts []Put) (committed Committed, err error) {
	err = r.patiently(ctx, func(ctx context.Context) (err error) {
		committed, err = r.kv.Commit(ctx, fence, puts)
		return err
	})
	return committed, err
}
