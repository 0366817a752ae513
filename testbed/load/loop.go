// Package load makes clients' requests, in an open or a closed loop, measures them, classifies answers, and records
// what was acknowledged. Load and Churn write objects of any resource through several servers.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Request is a request that was made.
type Request struct {
	// Due is when it had to be sent, End when it was answered.
	Due, End time.Time
	Err      error
}

// Requests are all requests of a loop, in the order of their ends.
type Requests []Request

// Took returns how many milliseconds each request took that was due between from and to.
func (all Requests) Took(from, to time.Time) []float64 {
	var took []float64
	for _, r := range all {
		if !r.Due.Before(from) && r.Due.Before(to) {
			took = append(took, float64(r.End.Sub(r.Due))/float64(time.Millisecond))
		}
	}
	return took
}

// Err returns the errors of the requests.
func (all Requests) Err() error {
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Err)
	}
	return errors.Join(errs...)
}

// record is shared by the clients of a loop.
type record struct {
	running sync.WaitGroup

	mu   sync.Mutex
	done Requests
}

func (r *record) time(due time.Time, request func() error) error {
	err := request()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, Request{Due: due, End: time.Now(), Err: err})
	return err
}

// maxWaiting is how many requests of an open loop may be without an answer.
const maxWaiting = 2000

// Open makes rate requests a second, also while earlier ones have no answer yet, until ctx ends or, unless count is 0,
// count requests were made. It returns when all are answered. The time of a request counts from when it was due. When
// 2,000 requests wait for an answer, the rate is more than the servers can serve: the next request is not made, has
// that as its error, and the loop ends.
func Open(ctx context.Context, rate, count int, request func(n int) error) Requests {
	r, began := &record{}, time.Now()
	var waiting atomic.Int64
	for n := 0; count == 0 || n < count; n++ {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
		if Pause(ctx, time.Until(due)) != nil {
			break
		}
		if waiting.Load() >= maxWaiting {
			_ = r.time(due, func() error {
				return fmt.Errorf("%d requests a second are more than are served: %d wait for an answer", rate, maxWaiting)
			})
			break
		}
		waiting.Add(1)
		r.running.Go(func() {
			defer waiting.Add(-1)
			_ = r.time(due, func() error { return request(n) })
		})
	}
	r.running.Wait()
	return r.done
}

// Closed runs this many clients. Each makes one request after the other, with a pause after each, until ctx ends or one
// of its requests fails. Closed returns when all are answered. request is given the number of the client, and how many
// requests that client has made before.
func Closed(ctx context.Context, clients int, pause time.Duration, request func(client, n int) error) Requests {
	r := &record{}
	for client := range clients {
		r.running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if r.time(time.Now(), func() error { return request(client, n) }) != nil {
					return
				}
				if pause > 0 {
					_ = Pause(ctx, pause)
				}
			}
		})
	}
	r.running.Wait()
	return r.done
}

// Pause waits for d, or fails when ctx ends before.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
