package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/stage"
)

const (
	// ownObjects is how many objects a writer creates; from then on it patches them.
	ownObjects = 8
	// retryPause is the time between two attempts at one write.
	retryPause = 20 * time.Millisecond
	stalled    = "stalleds"
)

// attempt is one request to write.
type attempt struct {
	server     int
	began, end time.Time
	// code is the status of a refused write, 0 of one that was not answered and 2xx of
	// one that was acknowledged.
	code int
	err  error
}

// write is what a client sees: attempts until one is acknowledged.
type write struct{ began, end time.Time }

// load is a number of writers, each bound to one server and with objects of its own.
type load struct {
	side  *side
	pause time.Duration
	// acknowledged is the last sequence number by object, for each writer.
	acknowledged []map[string]int
	sequence     []int

	mu       sync.Mutex
	attempts []attempt
	writes   []write
}

func newLoad(s *side, writers int, pause time.Duration) *load {
	l := &load{side: s, pause: pause, sequence: make([]int, writers)}
	for range writers {
		l.acknowledged = append(l.acknowledged, map[string]int{})
	}
	return l
}

// start lets the writers write until the function that it returns is called, which
// returns what they saw.
func (l *load) start(ctx context.Context) (stop func() ([]attempt, []write, error)) {
	l.attempts, l.writes = nil, nil
	stopping := make(chan struct{})
	var running sync.WaitGroup
	errs := make([]error, len(l.sequence))
	for w := range l.sequence {
		running.Go(func() { errs[w] = l.run(ctx, stopping, w) })
	}
	return func() ([]attempt, []write, error) {
		close(stopping)
		running.Wait()
		return l.attempts, l.writes, errors.Join(errs...)
	}
}

// run is one writer.
func (l *load) run(ctx context.Context, stopping <-chan struct{}, w int) error {
	// The writers begin one after the other within a pause.
	if !sleep(ctx, stopping, l.pause*time.Duration(w)/time.Duration(len(l.sequence))) {
		return ctx.Err()
	}
	for {
		if err := l.write(ctx, w); err != nil {
			return err
		}
		if !sleep(ctx, stopping, l.pause) {
			return ctx.Err()
		}
	}
}

// sleep returns false if it was interrupted.
func sleep(ctx context.Context, stopping <-chan struct{}, d time.Duration) bool {
	select {
	case <-stopping:
		return false
	default:
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stopping:
		return false
	case <-ctx.Done():
		return false
	}
}

// write sends the writer's next write until it is acknowledged.
func (l *load) write(ctx context.Context, w int) error {
	l.sequence[w]++
	sequence := l.sequence[w]
	name := fmt.Sprintf("writer-%d-%d", w, sequence%ownObjects)
	server := w % len(l.side.clients)
	method, path, contentType := http.MethodPost, corpus.CustomPath(stalled, "v1"), corpus.JSONType
	body := corpus.Marshal(corpus.Custom(stalled, "v1", name, sequence))
	if _, exists := l.acknowledged[w][name]; exists {
		// Without a resourceVersion: that a migration changes it is no conflict.
		method, path, contentType = http.MethodPatch, path+"/"+name, "application/merge-patch+json"
		body = corpus.Marshal(corpus.Fields{"spec": corpus.Fields{"sequence": sequence}})
	}
	first := time.Now()
	for {
		a := attempt{server: server, began: time.Now(), code: http.StatusOK}
		_, a.err = l.side.clients[server].Do(ctx, method, path, contentType, body)
		a.end = time.Now()
		var refused *stage.StatusError
		switch {
		case errors.As(a.err, &refused):
			a.code = refused.Code
		case a.err != nil:
			a.code = 0
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// What was created by an attempt that was not answered exists.
		done := a.err == nil || method == http.MethodPost && a.code == http.StatusConflict
		l.note(a, done, first)
		if done {
			l.acknowledged[w][name] = sequence
			return nil
		}
		if !sleep(ctx, nil, retryPause) {
			return ctx.Err()
		}
	}
}

func (l *load) note(a attempt, done bool, first time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempts = append(l.attempts, a)
	if done {
		l.writes = append(l.writes, write{began: first, end: a.end})
	}
}

// lost counts the acknowledged writes that are not stored.
func (l *load) lost(ctx context.Context) (int, error) {
	body, err := l.side.clients[0].Do(ctx, http.MethodGet, corpus.CustomPath(stalled, "v1"), "", nil)
	if err != nil {
		return 0, err
	}
	var list struct {
		Items []struct {
			corpus.Identity
			Spec struct{ Sequence int } `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return 0, fmt.Errorf("list of what was written: %w", err)
	}
	stored := map[string]int{}
	for _, item := range list.Items {
		stored[item.Metadata.Name] = item.Spec.Sequence
	}
	lost := 0
	for _, acknowledged := range l.acknowledged {
		for name, sequence := range acknowledged {
			if stored[name] != sequence {
				lost++
			}
		}
	}
	return lost, nil
}
