package stage

import (
	"context"
	"fmt"
	"time"
)

// Until looks at a condition from time to time until it holds, that is until look returns
// nil.
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

// await is Until as long as the process runs.
func (p *process) await(ctx context.Context, every time.Duration, look func(context.Context) error) error {
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
	if err == nil {
		return nil
	}
	select {
	case <-p.done:
		return p.failure("has ended")
	default:
		return p.failure(err.Error())
	}
}
