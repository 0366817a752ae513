package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
)

const (
	// writerCount clients write, each with writerPause between two writes.
	writerCount = 4
	writerPause = 20 * time.Millisecond
	objectsPath = "/api/v1/namespaces/default/configmaps"
)

// sample is one write of a client.
type sample struct{ began, end time.Time }

type samples []sample

// between returns the latencies, in milliseconds, of the writes that were begun in a time.
func (s samples) between(from, to time.Time) []float64 {
	var latencies []float64
	for _, one := range s {
		if !one.began.Before(from) && one.began.Before(to) {
			latencies = append(latencies, float64(one.end.Sub(one.began))/float64(time.Millisecond))
		}
	}
	return latencies
}

// writers are clients that update objects of their own.
type writers struct {
	servers *corpus.Servers

	mu       sync.Mutex
	samples  samples
	sequence int
}

// newWriters creates the writers' objects.
func newWriters(ctx context.Context, servers *corpus.Servers) (*writers, error) {
	for i := range writerCount {
		_, err := servers.Clients[0].Do(ctx, http.MethodPost, objectsPath, corpus.JSONType, corpus.Marshal(corpus.ConfigMap(writerName(i), 0)))
		if err != nil {
			return nil, fmt.Errorf("create a writer's object: %w", err)
		}
	}
	return &writers{servers: servers}, nil
}

func writerName(i int) string { return fmt.Sprint("writer-", i) }

// start lets the writers write until the function that it returns is called, which
// returns their samples.
func (w *writers) start(ctx context.Context) (stop func() (samples, error)) {
	ctx, cancel := context.WithCancel(ctx)
	w.samples = nil
	var running sync.WaitGroup
	errs := make([]error, writerCount)
	for i := range writerCount {
		running.Go(func() {
			for corpus.Pause(ctx, writerPause) == nil {
				if err := w.write(ctx, i); err != nil && ctx.Err() == nil {
					errs[i] = err
					return
				}
			}
		})
	}
	return func() (samples, error) {
		cancel()
		running.Wait()
		return w.samples, errors.Join(errs...)
	}
}

func (w *writers) write(ctx context.Context, i int) error {
	w.mu.Lock()
	w.sequence++
	sequence := w.sequence
	w.mu.Unlock()
	client := w.servers.Clients[sequence%len(w.servers.Clients)]
	body := corpus.Marshal(corpus.Fields{"data": corpus.Fields{"sequence": fmt.Sprint(sequence)}})
	began := time.Now()
	if _, err := client.Do(ctx, http.MethodPatch, objectsPath+"/"+writerName(i), "application/merge-patch+json", body); err != nil {
		return fmt.Errorf("a client's write: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, sample{began: began, end: time.Now()})
	return nil
}
