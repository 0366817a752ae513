package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/stage"
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

// load are clients that patch and read the migrated objects through one server.
type load struct {
	client *stage.Client
	path   func(i int) string
	open   bool

	mu   sync.Mutex
	done []request
	errs []error
}

// run makes requests until ctx ends and returns when all are answered.
func (l *load) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	if !l.open {
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
		if corpus.Pause(ctx, time.Until(due)) != nil {
			return
		}
		running.Go(func() { l.one(context.WithoutCancel(ctx), i, due, i%2 == 0) })
	}
}

// one makes a request until it is answered, which counts from when it was due.
func (l *load) one(ctx context.Context, i int, due time.Time, write bool) {
	method, contentType, body := http.MethodGet, "", []byte(nil)
	if write {
		method, contentType = http.MethodPatch, "application/merge-patch+json"
		body = corpus.Marshal(corpus.Fields{"spec": corpus.Fields{"sequence": i}})
	}
	for {
		_, err := l.client.Do(ctx, method, l.path(i), contentType, body)
		var status *stage.StatusError
		if errors.As(err, &status) && (status.Code == http.StatusServiceUnavailable || status.Code == http.StatusTooManyRequests) {
			_ = corpus.Pause(ctx, tryAgain)
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

// took are the milliseconds of the requests that were due in a time.
func (l *load) took(from, to time.Time) []float64 {
	var took []float64
	for _, r := range l.done {
		if !r.due.Before(from) && r.due.Before(to) {
			took = append(took, float64(r.end.Sub(r.due))/float64(time.Millisecond))
		}
	}
	return took
}
