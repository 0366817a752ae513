package process

import (
	"context"
	"fmt"
	"time"
)

// Until calls look from time to time until it returns nil.
func Until(ctx context.Context, every time.Duration, look func(context.Context) error) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		}
	}
}

// Await is like Until, but also ends when the process ends.
func (p *Process) Await(ctx context.Context, every time.Duration, look func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Until(ctx, every, look)
	switch {
	case err == nil:
		return nil
	case p.Ended():
		return p.Failure()
	}
	return fmt.Errorf("%w; %s", err, p.Tail())
}
