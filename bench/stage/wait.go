package stage

import (
	"context"
	"fmt"
	"time"

	"github.com/concord-dev/concord/process"
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
func await(ctx context.Context, p *process.Process, every time.Duration, look func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Until(ctx, every, look)
	if err == nil {
		return nil
	}
	select {
	case <-p.Done():
		return p.Failure()
	default:
		return fmt.Errorf("%w; %s", err, p.Tail())
	}
}
