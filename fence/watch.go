package fence

import (
	"context"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/workers"
)

const (
	// maxStarts is how often a watch is started on the cache before it is given to etcd.
	maxStarts = 10
	// maxStartWait is how long it waits, in all, for times between two batches.
	maxStartWait = time.Second
)

// Watch implements storage.Interface. A client that goes on from a batch has perhaps seen
// only a part of it, and gets all of it once more. A watch on the cache begins when that
// is not in the middle of a batch: it would take what it has then for the whole.
func (s *forwarder) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	requested, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if initial {
		requested = 0 // nothing to go on from
	}
	if s.feeder == nil {
		return s.watchUncached(ctx, key, opts, requested)
	}
	if opts.ResourceVersion == "" && opts.SendInitialEvents != nil {
		// As the cache would do; but a second start then needs nothing that is newer.
		now, err := s.GetCurrentResourceVersion(ctx)
		if err != nil {
			return nil, err
		}
		opts.ResourceVersion = strconv.FormatUint(now, 10)
	}
	// The first start of one that asks for fresh objects waits for them.
	patient := initial && opts.ResourceVersion != "0"
	if patient || !s.feeder.gate.middle() {
		if w, valid, err := s.start(ctx, key, opts, requested); valid || err != nil {
			return w, err
		}
	}
	return s.startBetween(ctx, key, opts, requested)
}

// startBetween starts a watch between two batches.
func (s *forwarder) startBetween(ctx context.Context, key string, opts storage.ListOptions, requested uint64) (watch.Interface, error) {
	gr := s.self.GroupResource
	timer := s.fence.clock.NewTimer(maxStartWait)
	defer timer.Stop()
	for range maxStarts {
		window := s.feeder.gate.enter(ctx, timer.C())
		if window == nil {
			break
		}
		w, valid, err := s.start(ctx, key, opts, requested)
		window.leave()
		if valid || err != nil {
			betweenBatches.WithLabelValues(gr.Group, gr.Resource, "cache").Inc()
			return w, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	betweenBatches.WithLabelValues(gr.Group, gr.Resource, "etcd").Inc()
	return s.watchRaw(ctx, key, opts, s.plan(requested))
}

// plan is how a watch goes on from a revision.
type plan struct {
	// after is the revision after which events are missing, 0 for the present state.
	after uint64
	// unsure says that the revision after that one may or may not be a batch's.
	unsure bool
	// uncached says that the cache has not got the batch's events, only its outcome.
	uncached bool
	// edge says that the cache may have lost some of the next events.
	edge bool
}

func (s *forwarder) plan(requested uint64) plan {
	passed := s.feeder.passed.Load() // before batches are asked: they know all up to there
	switch {
	case requested <= 1: // no object is that old
		return plan{after: requested}
	case requested > passed:
		return plan{after: requested - 1, unsure: true}
	case !s.batches.has(requested):
		return plan{after: requested, edge: s.feeder.edge(requested)}
	case requested == s.feeder.listed.Load():
		return plan{after: requested - 1, uncached: true}
	}
	return plan{after: requested - 1, edge: s.feeder.edge(requested - 1)}
}

// start starts a watch, which is valid if it was not in the middle of a batch, or tells the
// client of an error.
func (s *forwarder) start(ctx context.Context, key string, opts storage.ListOptions, requested uint64) (w watch.Interface, valid bool, err error) {
	gate := s.feeder.gate
	seq, p := gate.seq.Load(), s.plan(requested)
	w, err = s.carryOut(ctx, key, opts, requested, p)
	// The plan is another one, too, when the cache was built only now.
	planned := s.plan(requested) == p
	if err != nil || planned && seq%2 == 0 && gate.seq.Load() == seq {
		return w, true, err
	}
	if first, failed := peek(w); failed && planned {
		return trim(w, first, nil), true, nil
	}
	w.Stop()
	return nil, false, nil
}

func (s *forwarder) carryOut(ctx context.Context, key string, opts storage.ListOptions, requested uint64, p plan) (watch.Interface, error) {
	switch {
	case p.uncached:
		return s.watchRaw(ctx, key, opts, p)
	case p.after == requested && !p.edge:
		return s.Interface.Watch(ctx, key, opts)
	case p.edge:
		// That the cache goes back further proves that it has all.
		if p.after == 1 {
			return s.watchRaw(ctx, key, opts, p)
		}
		w, err := s.Interface.Watch(ctx, key, since(opts, p.after-1))
		if err != nil {
			return nil, err
		}
		first, failed := peek(w)
		if failed {
			return s.watchRaw(ctx, key, opts, p)
		}
		return trim(w, first, func(revision uint64) bool { return revision <= p.after }), nil
	}
	w, err := s.Interface.Watch(ctx, key, since(opts, p.after))
	if err != nil || !p.unsure {
		return w, err
	}
	return trim(w, nil, s.seenBy(requested)), nil
}

// watchRaw watches etcd, once for this client alone.
func (s *forwarder) watchRaw(ctx context.Context, key string, opts storage.ListOptions, p plan) (watch.Interface, error) {
	if p.after > 0 {
		opts = since(opts, p.after)
	}
	return s.self.raw.Watch(ctx, key, opts)
}

// watchUncached watches etcd where there is no cache. The server knows only of batches which
// its watches have seen, so any revision may be one.
func (s *forwarder) watchUncached(ctx context.Context, key string, opts storage.ListOptions, requested uint64) (watch.Interface, error) {
	if requested <= 1 {
		return s.Interface.Watch(ctx, key, opts)
	}
	w, err := s.Interface.Watch(ctx, key, since(opts, requested-1))
	if err != nil {
		return nil, err
	}
	return trim(w, nil, s.seenBy(requested)), nil
}

// seenBy says of events which a client that goes on from a revision has seen. Whether the
// revision is a batch's is known when its events are there.
func (s *forwarder) seenBy(requested uint64) func(revision uint64) bool {
	return func(revision uint64) bool {
		return revision < requested || revision == requested && !s.batches.has(revision)
	}
}

func since(opts storage.ListOptions, revision uint64) storage.ListOptions {
	opts.ResourceVersion = strconv.FormatUint(revision, 10)
	return opts
}

// peek takes an event from a watch that has just been started, if there is one, and says
// whether it is that the watch cannot be.
func peek(w watch.Interface) (first *watch.Event, failed bool) {
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return nil, false
		}
		return &event, event.Type == watch.Error
	default:
		return nil, false
	}
}

// trimmed is a watch without some of its first events.
type trimmed struct {
	watch.Interface
	result chan watch.Event
	once   sync.Once
	stop   chan struct{}
}

// trim leaves out the events whose revision drop names, if it is not nil. First, if it is
// not nil, was already taken from w.
func trim(w watch.Interface, first *watch.Event, drop func(revision uint64) bool) watch.Interface {
	t := &trimmed{Interface: w, result: make(chan watch.Event), stop: make(chan struct{})}
	workers.Go(context.Background(), "watch-trim", func() { t.run(first, drop) })
	return t
}

// ResultChan implements watch.Interface.
func (t *trimmed) ResultChan() <-chan watch.Event { return t.result }

// Stop implements watch.Interface.
func (t *trimmed) Stop() {
	t.once.Do(func() {
		close(t.stop)
		t.Interface.Stop()
	})
}

func (t *trimmed) run(first *watch.Event, drop func(revision uint64) bool) {
	defer close(t.result)
	if first != nil && !t.pass(*first, drop) {
		return
	}
	for event := range t.Interface.ResultChan() {
		if !t.pass(event, drop) {
			return
		}
	}
}

func (t *trimmed) pass(event watch.Event, drop func(revision uint64) bool) bool {
	if drop != nil && event.Type != watch.Error {
		if revision, err := versioner.ObjectResourceVersion(event.Object); err == nil && drop(revision) {
			return true
		}
	}
	select {
	case t.result <- event:
		return true
	case <-t.stop:
		return false
	}
}
