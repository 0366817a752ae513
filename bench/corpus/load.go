package corpus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/controlplane"
)

const (
	// openRate is how many requests of an open loop are due in a second: half of them writes.
	openRate = 200
	// closedClients write and read in turns without a pause in a closed loop.
	closedClients = 32
	// tryAgain is after how long a client asks again that was told to, as client-go does.
	tryAgain = time.Second
)

// request is one that a client made.
type request struct{ due, end time.Time }

// Load are clients that patch and read objects through one server: an open loop of requests
// which are due at fixed times, or else a closed one.
type Load struct {
	Client *stage.Client
	Path   func(i int) string
	Open   bool

	mu   sync.Mutex
	done []request
	errs []error
}

// Run makes requests until ctx ends and returns when all are answered.
func (l *Load) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	if !l.Open {
		for c := range closedClients {
			running.Go(func() {
				for i := c; ctx.Err() == nil; i += closedClients {
					l.one(context.WithoutCancel(ctx), i, time.Now(), (i/closedClients)%2 == 0)
				}
			})
		}
		return
	}
	for i := 0; ; i++ {
		due := began.Add(time.Duration(i) * time.Second / openRate)
		if Pause(ctx, time.Until(due)) != nil {
			return
		}
		running.Go(func() { l.one(context.WithoutCancel(ctx), i, due, i%2 == 0) })
	}
}

// one makes a request until it is answered, which counts from when it was due.
func (l *Load) one(ctx context.Context, i int, due time.Time, write bool) {
	method, contentType, body := http.MethodGet, "", []byte(nil)
	if write {
		method, contentType = http.MethodPatch, "application/merge-patch+json"
		body = Marshal(Fields{"spec": Fields{"sequence": i}})
	}
	for {
		_, err := l.Client.Do(ctx, method, l.Path(i), contentType, body)
		var status *controlplane.StatusError
		if errors.As(err, &status) && (status.Code == http.StatusServiceUnavailable || status.Code == http.StatusTooManyRequests) {
			_ = Pause(ctx, tryAgain)
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if err != nil {
			l.errs = append(l.errs, fmt.Errorf("a client's request: %w", err))
		}
		l.done = append(l.done, request{due: due, end: time.Now()})
		return
	}
}

// Took are the milliseconds of the requests that were due in a time. It is called after Run.
func (l *Load) Took(from, to time.Time) []float64 {
	var took []float64
	for _, r := range l.done {
		if !r.due.Before(from) && r.due.Before(to) {
			took = append(took, float64(r.end.Sub(r.due))/float64(time.Millisecond))
		}
	}
	return took
}

// Err returns the errors of the requests. It is called after Run.
func (l *Load) Err() error { return errors.Join(l.errs...) }
