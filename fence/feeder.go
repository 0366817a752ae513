package fence

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/workers"
)

// keptEvents is how many events every watch cache keeps at least.
const keptEvents = 100

var versioner = storage.APIObjectVersioner{}

// feeder is the store that a watch cache reads, one list and then one watch at a time. It
// hands events over one by one, so that it knows which batch the cache is in the middle of, and
// lets the cache's own watch go on with all of a batch that was cut off.
type feeder struct {
	storage.Interface
	newFunc func() runtime.Object
	batches *batches
	gate    *gate

	// listed is the revision of the list that the cache began with, 0 before; passed the
	// last that the cache may know of.
	listed, passed atomic.Uint64

	mu sync.Mutex
	// current is the watch that was begun last.
	current *feed
	// events were handed over since the list, begun of them before the first one of
	// lastBatch.
	events, begun, lastBatch uint64

	// What follows belongs to the goroutine of the current watch, or to who lists: the batch in
	// whose middle the cache is, or 0, and how many of its events are still to come; how many
	// objects on the pages of a list so far were written at its revision.
	middle  uint64
	left    int
	written int
}

func newFeeder(raw storage.Interface, newFunc func() runtime.Object, b *batches, g *gate) *feeder {
	return &feeder{Interface: raw, newFunc: newFunc, batches: b, gate: g}
}

// GetList implements storage.Interface, for lists that replace what the cache has.
func (f *feeder) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	err := f.Interface.GetList(ctx, key, opts, list)
	if err != nil || opts.ResourceVersion != "" {
		return err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	revision, err := versioner.ParseResourceVersion(l.GetResourceVersion())
	if err != nil {
		return err
	}
	written := 0
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		if at, err := versioner.ObjectResourceVersion(obj); err == nil && at == revision {
			written++
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.retire()
	if opts.Predicate.Continue != "" {
		written += f.written
	}
	f.written = written
	f.replace(revision, written)
	return nil
}

// replace says that the cache takes over a list, of whose objects some were written at its
// very revision. It is not ready before it has.
func (f *feeder) replace(revision uint64, written int) {
	f.batches.note(revision, written)
	f.middle = 0
	f.gate.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events, f.begun, f.lastBatch = 0, 0, 0
	f.listed.Store(revision)
	f.passed.Store(revision)
}

// retire ends the current watch.
func (f *feeder) retire() {
	f.mu.Lock()
	old := f.current
	f.current = nil
	f.mu.Unlock()
	if old != nil {
		old.Stop()
		<-old.done
	}
}

// Watch implements storage.Interface, for the cache's only watch. One that begins after a
// batch begins before it: the cache may have been in its middle, and does not mind events
// that it had.
func (f *feeder) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	f.retire()
	revision, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	list := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if !list && f.batches.has(revision) {
		opts.ResourceVersion = strconv.FormatUint(revision-1, 10)
	}
	source, err := f.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	f.left = f.batches.size(f.middle)
	next := &feed{source: source, result: make(chan watch.Event), stop: make(chan struct{}), done: make(chan struct{})}
	f.mu.Lock()
	f.current = next
	f.mu.Unlock()
	workers.Go(ctx, "watch-cache-feed", func() { f.run(next, list) })
	return next, nil
}

// feed is a watch of the cache.
type feed struct {
	source watch.Interface
	result chan watch.Event
	once   sync.Once
	stop   chan struct{}
	done   chan struct{}
}

// ResultChan implements watch.Interface.
func (w *feed) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *feed) Stop() {
	w.once.Do(func() {
		close(w.stop)
		w.source.Stop()
	})
}

// send returns when the cache has taken the event, and so is done with the one before.
func (w *feed) send(event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.stop:
		return false
	}
}

// run hands events over until the watch ends. Those of a list come before the others, and a
// bookmark after them.
func (f *feeder) run(w *feed, list bool) {
	defer close(w.done)
	defer close(w.result)
	var last uint64 // revision of an object in the list
	written := 0    // objects of that revision
	for going := true; going; {
		var event watch.Event
		select {
		case event, going = <-w.source.ResultChan():
			if !going {
				return
			}
		case <-w.stop:
			return
		}
		revision, err := versioner.ObjectResourceVersion(event.Object)
		switch {
		case event.Type == watch.Error || err != nil:
			going = w.send(event)
		case list && event.Type == watch.Bookmark:
			list = false
			if revision != last {
				written = 0
			}
			f.replace(revision, written)
			going = w.send(event)
		case list:
			if revision > last {
				last, written = revision, 0
			}
			if revision == last {
				written++
			}
			going = w.send(event)
		case event.Type == watch.Bookmark:
			going = f.bookmark(w, event, revision)
		default:
			going = f.hand(w, event, revision)
		}
	}
}

// hand hands one event over.
func (f *feeder) hand(w *feed, event watch.Event, revision uint64) bool {
	if f.middle != 0 && f.middle != revision && !f.finish(w) {
		return false
	}
	first := false
	if f.middle == 0 {
		if n := f.batches.size(revision); n > 1 {
			if !f.gate.begin(w.stop) {
				return false
			}
			f.middle, f.left, first = revision, n, true
		}
	}
	f.count(revision, first)
	if !w.send(event) {
		return false
	}
	if f.middle == 0 {
		return true
	}
	f.left--
	return f.left > 0 || f.finish(w)
}

// count is called before an event is handed over.
func (f *feeder) count(revision uint64, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first {
		f.begun, f.lastBatch = f.events, revision
	}
	f.events++
	f.passed.Store(revision)
}

// finish tells the cache that a batch is over; when it takes that, it is done with the batch.
func (f *feeder) finish(w *feed) bool {
	object := f.newFunc()
	if err := versioner.UpdateObject(object, f.middle); err != nil {
		return false
	}
	return f.bookmark(w, watch.Event{Type: watch.Bookmark, Object: object}, f.middle)
}

// bookmark hands a bookmark over: all events up to its revision were before it.
func (f *feeder) bookmark(w *feed, event watch.Event, revision uint64) bool {
	f.passed.Store(revision)
	if !w.send(event) {
		return false
	}
	if f.middle != 0 && f.middle <= revision {
		f.middle = 0
		f.gate.end()
	}
	return true
}

// edge says that a cache which has events after the revision may have lost some of a batch
// that comes next: the oldest events go one by one.
func (f *feeder) edge(revision uint64) bool {
	next := revision + 1
	if !f.batches.has(next) || revision < f.listed.Load() || next > f.passed.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return next != f.lastBatch || f.events-f.begun > keptEvents
}
