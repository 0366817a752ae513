package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch feeds an account S from etcd: a Ledger, or anything else that is computed from events.
type Watch[S any] struct {
	account S
	apply   func(Event)
	client  *clientv3.Client
	end     string // a key beside those followed, whose put shows how far the watch has come
	cancel  context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	moved  chan struct{} // closed and replaced with every batch of events
	seen   int64         // the last revision of the key end
	err    error
	awaits []await[S]
}

// await is a condition that somebody waits for; met is closed when it holds.
type await[S any] struct {
	condition func(S) bool
	met       chan struct{}
}

// NewWatch returns a watch that is not started. apply adds an event to the account.
func NewWatch[S any](account S, apply func(Event)) *Watch[S] {
	return &Watch[S]{account: account, apply: apply, moved: make(chan struct{}), done: make(chan struct{})}
}

// Start follows all keys that begin with prefix from a revision on, which must not be compacted.
// The etcd need not run yet.
func (w *Watch[S]) Start(client *clientv3.Client, prefix string, from int64) {
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	w.client, w.end = client, prefix+"-end"
	go w.run(ctx, prefix, from)
}

func (w *Watch[S]) run(ctx context.Context, prefix string, from int64) {
	defer close(w.done)
	// client.Watch blocks until etcd answers, so it is not called in Start.
	for batch := range w.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		at := time.Now()
		w.mu.Lock()
		if err := batch.Err(); err != nil {
			w.err = fmt.Errorf("the watch of etcd ended: %w", err)
		}
		for _, e := range batch.Events {
			w.take(e, at)
		}
		w.meet()
		close(w.moved)
		w.moved = make(chan struct{})
		w.mu.Unlock()
	}
}

func (w *Watch[S]) take(e *clientv3.Event, at time.Time) {
	event := Event{Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), At: at}
	if event.Key == w.end {
		w.seen = event.Revision
		return
	}
	if e.Type == clientv3.EventTypePut {
		event.Value = e.Kv.Value
	}
	w.apply(event)
}

// Done is closed when the watch has ended, also after Stop.
func (w *Watch[S]) Done() <-chan struct{} { return w.done }

// Err says why the watch has ended.
func (w *Watch[S]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.err, errEnded)
}

var errEnded = errors.New("the watch of etcd has ended")

// CatchUp waits until everything has been applied that was in etcd when CatchUp was called.
func (w *Watch[S]) CatchUp(ctx context.Context) error {
	resp, err := w.client.Put(ctx, w.end, "")
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	for {
		w.mu.Lock()
		seen, err, moved := w.seen, w.err, w.moved
		w.mu.Unlock()
		if err != nil || seen >= resp.Header.Revision {
			return err
		}
		select {
		case <-moved:
		case <-w.done:
			return w.Err()
		case <-ctx.Done():
			return fmt.Errorf("the watch of etcd is at revision %d, not yet at %d: %w", seen, resp.Header.Revision, ctx.Err())
		}
	}
}

// When returns a channel that is closed as soon as the condition holds. It is checked after each
// batch of events, which is faster than polling. The condition must not keep the account.
func (w *Watch[S]) When(condition func(S) bool) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	met := make(chan struct{})
	w.awaits = append(w.awaits, await[S]{condition, met})
	w.meet()
	return met
}

// meet closes the channels of the conditions that have come true.
func (w *Watch[S]) meet() {
	w.awaits = slices.DeleteFunc(w.awaits, func(a await[S]) bool {
		met := a.condition(w.account)
		if met {
			close(a.met)
		}
		return met
	})
}

// With calls f with the account, which f must not keep, and returns a channel that is closed when
// more events have come.
func (w *Watch[S]) With(f func(S)) (moved <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.account)
	return w.moved
}

// Stop ends the watch, if it was started. Afterwards the account can also be read without With.
func (w *Watch[S]) Stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
}

// Record keeps the puts and deletes below prefix, which ends in a slash, from now until the returned
// function is called or ctx is done.
func Record(ctx context.Context, client *clientv3.Client, prefix string) (stop func(context.Context) ([]Event, error), err error) {
	now, err := client.Get(ctx, prefix, clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("ask etcd for its revision: %w", err)
	}
	var events []Event
	w := NewWatch(&events, func(e Event) { events = append(events, e) })
	w.Start(client, strings.TrimSuffix(prefix, "/"), now.Header.Revision+1)
	context.AfterFunc(ctx, w.cancel)
	return func(ctx context.Context) ([]Event, error) {
		err := w.CatchUp(ctx)
		w.Stop()
		return slices.DeleteFunc(events, func(e Event) bool { return !strings.HasPrefix(e.Key, prefix) }), err
	}, nil
}
