package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// sentinel is a key beside the objects whose put shows how far the watch has come.
const sentinel = "/e2e/sentinel"

// Watch feeds a Ledger from etcd.
type Watch struct {
	client *clientv3.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	ledger *Ledger
	moved  chan struct{} // closed and replaced with every batch of events
	seen   int64         // the sentinel's last revision
	err    error
	awaits []await
}

// await is closed when its condition holds.
type await struct {
	condition func(*Ledger) bool
	met       chan struct{}
}

// Start follows the whole store from its first revision on, so that it has to be called
// before anything is compacted. The etcd need not run yet.
func Start(client *clientv3.Client, ledger *Ledger) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{client: client, cancel: cancel, done: make(chan struct{}), ledger: ledger, moved: make(chan struct{})}
	go w.run(ctx)
	return w
}

func (w *Watch) run(ctx context.Context) {
	defer close(w.done)
	// Watch itself blocks until etcd answers.
	for batch := range w.client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		w.mu.Lock()
		if err := batch.Err(); err != nil {
			w.err = fmt.Errorf("audit: the watch of etcd ended: %w", err)
		}
		for _, e := range batch.Events {
			w.apply(e)
		}
		w.meet()
		close(w.moved)
		w.moved = make(chan struct{})
		w.mu.Unlock()
	}
}

func (w *Watch) apply(e *clientv3.Event) {
	key := string(e.Kv.Key)
	if key == sentinel {
		w.seen = e.Kv.ModRevision
		return
	}
	event := Event{Revision: e.Kv.ModRevision, Key: key}
	if e.Type == clientv3.EventTypePut {
		event.Value = e.Kv.Value
	}
	w.ledger.Apply(event)
}

// CatchUp returns when everything has been applied that was in etcd when it was called.
func (w *Watch) CatchUp(ctx context.Context) error {
	resp, err := w.client.Put(ctx, sentinel, "")
	if err != nil {
		return fmt.Errorf("audit: %w", err)
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
			return errors.New("audit: the watch has ended")
		case <-ctx.Done():
			return fmt.Errorf("audit: the watch is at revision %d, not yet at %d: %w", seen, resp.Header.Revision, ctx.Err())
		}
	}
}

// When returns a channel that is closed as soon as the condition holds, in less time than it takes to
// ask again and again. The condition must not keep the ledger.
func (w *Watch) When(condition func(*Ledger) bool) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	met := make(chan struct{})
	w.awaits = append(w.awaits, await{condition, met})
	w.meet()
	return met
}

// meet closes the channels of the conditions that have come true.
func (w *Watch) meet() {
	w.awaits = slices.DeleteFunc(w.awaits, func(a await) bool {
		met := a.condition(w.ledger)
		if met {
			close(a.met)
		}
		return met
	})
}

// With gives f the ledger, which must not be kept.
func (w *Watch) With(f func(*Ledger)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.ledger)
}

// Stop ends the watch. The ledger can still be read.
func (w *Watch) Stop() {
	w.cancel()
	<-w.done
}
