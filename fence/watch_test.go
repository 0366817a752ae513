package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
)

const (
	widgetsKey = "/example.com/widgets/"
	// marker is a widget whose key comes after all others.
	marker = "x"
)

// decoding is a codec whose decoding is hooked: before may block, or fail.
type decoding struct {
	runtime.Codec
	before atomic.Pointer[func(data []byte) error]
}

func (d *decoding) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if before := d.before.Load(); before != nil {
		if err := (*before)(data); err != nil {
			return nil, nil, err
		}
	}
	return d.Codec.Decode(data, defaults, into)
}

// holdAt stops the decoding of a widget with some size until release is called; held is
// closed when it has been reached.
func (d *decoding) holdAt(t *testing.T, name, size string) (held <-chan struct{}, release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reached) })
	before := func(data []byte) error {
		if bytes.Contains(data, []byte(`"`+name+`"`)) && bytes.Contains(data, []byte(`"`+size+`"`)) {
			once()
			<-released
		}
		return nil
	}
	d.before.Store(&before)
	release = sync.OnceFunc(func() {
		d.before.Store(nil)
		close(released)
	})
	t.Cleanup(release)
	return reached, release
}

// batched is a world in which batches of widgets are written to etcd as a rewrite does.
type batched struct {
	*world
	store    *forwarder
	decoding *decoding
	// taking is called when a cache takes a widget in.
	taking atomic.Pointer[func(*unstructured.Unstructured)]
	names  []string
	// newest has the revision at which each widget was written last.
	newest map[string]uint64
}

func newBatched(t *testing.T, n int) *batched {
	b := &batched{world: newWorld(t), newest: map[string]uint64{}}
	b.decoding = &decoding{Codec: widgetCodec(widgetsV1, widgetsV1)}
	for i := range n {
		b.names = append(b.names, fmt.Sprintf("w%03d", i))
	}
	for names := range slices.Chunk(b.names, 100) {
		b.write("0", names...)
	}
	b.put("outside", "") // the cache's list is not at the revision of a batch
	b.store = b.serve(true)
	b.list("")
	return b
}

// serve builds a store, as a server that is started again does.
func (b *batched) serve(cached bool) *forwarder {
	b.Helper()
	keyOf := func(obj runtime.Object) (string, error) {
		u := obj.(*unstructured.Unstructured)
		if taking := b.taking.Load(); taking != nil {
			(*taking)(u)
		}
		return widgetsKey + u.GetName(), nil
	}
	s, destroy, err := b.fence.Decorator(cached)(b.config(widgets, b.decoding), "/example.com/widgets", keyOf,
		func() runtime.Object { return emptyWidget(widgetsV1) },
		func() runtime.Object { return newWidgetList(widgetsV1) },
		storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(destroy)
	return s.(*forwarder)
}

// write writes widgets in one transaction and returns its revision.
func (b *batched) write(size string, names ...string) uint64 {
	b.Helper()
	revision, err := b.tryWrite(size, names...)
	if err != nil {
		b.Fatal(err)
	}
	return revision
}

func (b *batched) tryWrite(size string, names ...string) (uint64, error) {
	var ops []clientv3.Op
	for _, name := range names {
		data, err := widget(widgetsV1, name, size).MarshalJSON()
		if err != nil {
			return 0, err
		}
		put := clientv3.OpPut(b.prefix+widgetsKey+name, string(data))
		ops = append(ops, clientv3.OpTxn(nil, []clientv3.Op{put}, nil))
	}
	resp, err := testEtcd.Txn(b.Context()).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		b.newest[name] = uint64(resp.Header.Revision)
	}
	return uint64(resp.Header.Revision), nil
}

// put writes something else.
func (b *batched) put(key, value string) {
	b.Helper()
	if _, err := testEtcd.Put(b.Context(), b.prefix+"/"+key, value); err != nil {
		b.Fatal(err)
	}
}

// cutOff writes a batch and has the cache wait in its middle: it has the first two.
func (b *batched) cutOff(t *testing.T, size string) (revision uint64, release func()) {
	held, release := b.decoding.holdAt(t, b.names[2], size)
	revision = b.write(size, b.names...)
	<-held
	eventually(t, "the cache to have half of the batch", func() bool {
		seen, at := b.list("0")
		return at == revision && seen[b.names[1]] == revision
	})
	return revision, release
}

// list returns the revisions of the widgets and of the list.
func (b *batched) list(resourceVersion string) (seen map[string]uint64, revision uint64) {
	b.Helper()
	eventually(b, "the cache to be ready", func() bool {
		var err error
		seen, revision, err = list(b.Context(), b.store, resourceVersion)
		if err != nil && !apierrors.IsTooManyRequests(err) {
			b.Fatal(err)
		}
		return err == nil
	})
	return seen, revision
}

// caughtUp waits until the cache has what was written.
func (b *batched) caughtUp(t *testing.T) {
	t.Helper()
	eventually(t, "the cache", func() bool {
		seen, _, err := list(t.Context(), b.store, "0")
		return err == nil && maps.Equal(seen, b.newest)
	})
}

func list(ctx context.Context, s storage.Interface, resourceVersion string) (map[string]uint64, uint64, error) {
	l := newWidgetList(widgetsV1)
	err := s.GetList(ctx, widgetsKey, storage.ListOptions{ResourceVersion: resourceVersion, Predicate: storage.Everything, Recursive: true}, l)
	if err != nil {
		return nil, 0, err
	}
	seen := map[string]uint64{}
	for _, item := range l.Items {
		if seen[item.GetName()], err = versioner.ObjectResourceVersion(&item); err != nil {
			return nil, 0, err
		}
	}
	revision, err := versioner.ParseResourceVersion(l.GetResourceVersion())
	return seen, revision, err
}

func (b *batched) watchOptions(resourceVersion string) storage.ListOptions {
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	return storage.ListOptions{ResourceVersion: resourceVersion, Predicate: predicate, Recursive: true}
}

// begun is a watch that was started, or could not be.
type begun struct {
	w   watch.Interface
	err error
}

// begin starts a watch on the side, since it may have to wait.
func (b *batched) begin(ctx context.Context, opts storage.ListOptions) <-chan begun {
	result := make(chan begun, 1)
	go func() {
		w, err := b.store.Watch(ctx, widgetsKey, opts)
		result <- begun{w, err}
	}()
	return result
}

// object tells an event's.
func object(t testing.TB, event watch.Event) (name string, revision uint64) {
	t.Helper()
	if event.Type == watch.Error {
		t.Fatalf("the watch ended with %v", event.Object)
	}
	m, err := meta.Accessor(event.Object)
	if err != nil {
		t.Fatal(err)
	}
	revision, err = versioner.ParseResourceVersion(m.GetResourceVersion())
	if err != nil {
		t.Fatal(err)
	}
	return m.GetName(), revision
}

// wantAll waits until the watch has told the newest revision of all widgets that were
// not seen at it before, then of marker, which is written now: nothing can come later.
func (b *batched) wantAll(t *testing.T, from <-chan begun, seen map[string]uint64) (events map[string]int) {
	t.Helper()
	var s begun
	select {
	case s = <-from:
	case <-time.After(patience):
		t.Fatalf("the watch was not started within %s", patience)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	defer s.w.Stop()
	seen, events = maps.Clone(seen), map[string]int{}
	if seen == nil {
		seen = map[string]uint64{}
	}
	want := maps.Clone(b.newest)
	last := b.write("last", marker)
	timeout := time.After(patience)
	for seen[marker] != last {
		select {
		case event, ok := <-s.w.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			if name, revision := object(t, event); event.Type != watch.Bookmark {
				seen[name] = revision
				events[name]++
			}
		case <-timeout:
			t.Fatalf("waited %s for the marker", patience)
		}
	}
	delete(events, marker)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if name != marker && seen[name] != want[name] {
			t.Errorf("%s was last seen at revision %d, and is at %d", name, seen[name], want[name])
		}
	}
	return events
}

func rv(revision uint64) string { return strconv.FormatUint(revision, 10) }

// A client that lists in the middle of a batch and watches from there gets the rest of it.
func TestListAndWatchInABatch(t *testing.T) {
	b := newBatched(t, 10)
	_, release := b.cutOff(t, "1")
	seen, revision := b.list("0")
	watching := b.begin(t.Context(), b.watchOptions(rv(revision)))
	release()
	b.wantAll(t, watching, seen)
}

// A client whose watch breaks in the middle of a batch gets the rest of it when it resumes,
// whether the cache is still there or has long gone on.
func TestResumeInABatch(t *testing.T) {
	for _, goneOn := range []bool{false, true} {
		t.Run(fmt.Sprint("goneOn=", goneOn), func(t *testing.T) {
			b := newBatched(t, 10)
			seen, revision := b.list("0")
			first := <-b.begin(t.Context(), b.watchOptions(rv(revision)))
			if first.err != nil {
				t.Fatal(first.err)
			}
			at, release := b.cutOff(t, "1")
			name, revision := object(t, <-first.w.ResultChan())
			if seen[name] = revision; revision != at {
				t.Fatalf("saw revision %d of a batch at %d", revision, at)
			}
			first.w.Stop()
			if goneOn {
				release()
				for i := range 3 {
					b.write(fmt.Sprint(2+i), b.names[0])
				}
				b.caughtUp(t)
			}
			watching := b.begin(t.Context(), b.watchOptions(rv(at)))
			release()
			b.wantAll(t, watching, seen)
		})
	}
}

// A watch that is started in the middle of a batch gets the rest of it, from wherever.
func TestWatchStartedInABatch(t *testing.T) {
	yes := true
	for name, options := range map[string]func(b *batched, old uint64) storage.ListOptions{
		"old":   func(b *batched, old uint64) storage.ListOptions { return b.watchOptions(rv(old)) },
		"any":   func(b *batched, _ uint64) storage.ListOptions { return b.watchOptions("0") },
		"unset": func(b *batched, _ uint64) storage.ListOptions { return b.watchOptions("") },
		"list any": func(b *batched, _ uint64) storage.ListOptions {
			opts := b.watchOptions("0")
			opts.SendInitialEvents = &yes
			return opts
		},
		"list old": func(b *batched, old uint64) storage.ListOptions {
			opts := b.watchOptions(rv(old))
			opts.SendInitialEvents = &yes
			return opts
		},
		"list newest": func(b *batched, _ uint64) storage.ListOptions {
			opts := b.watchOptions("")
			opts.SendInitialEvents = &yes
			return opts
		},
	} {
		for _, source := range []string{"cache", "etcd"} {
			t.Run(name+" from "+source, func(t *testing.T) {
				b := newBatched(t, 10)
				seen, old := b.list("0")
				_, release := b.cutOff(t, "1")
				counted := started(t, source)
				watching := b.begin(t.Context(), options(b, old))
				eventually(t, "the watch to wait", func() bool { return b.store.feeder.gate.waits() > 0 })
				if source == "cache" {
					release()
				} else {
					// The cache does not go on: the watch is started nevertheless.
					b.clock.Step(maxStartWait)
					s := <-watching
					again := make(chan begun, 1)
					again <- s
					watching = again
					release()
				}
				b.wantAll(t, watching, seen)
				if n := started(t, source) - counted; n != 1 {
					t.Errorf("%v watches were counted as started on %s", n, source)
				}
			})
		}
	}
}

func started(t *testing.T, source string) float64 {
	t.Helper()
	n, err := testutil.GetCounterMetricValue(betweenBatches.WithLabelValues(widgets.Group, widgets.Resource, source))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The batch is over when the cache is done with its last event, and not when it takes it.
func TestWatchStartedAtTheLastOfABatch(t *testing.T) {
	b := newBatched(t, 10)
	seen, _ := b.list("0")
	taken, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(taken) })
	taking := func(u *unstructured.Unstructured) {
		if size, _, _ := unstructured.NestedString(u.Object, "spec", "size"); size == "1" && u.GetName() == b.names[9] {
			once()
			<-release
		}
	}
	b.taking.Store(&taking)
	b.write("1", b.names...)
	<-taken
	watching := b.begin(t.Context(), b.watchOptions("0"))
	eventually(t, "the watch to wait", func() bool { return b.store.feeder.gate.waits() > 0 || len(watching) > 0 })
	close(release)
	b.wantAll(t, watching, seen)
}

func (g *gate) waits() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queue)
}

// A cache whose own watch breaks in the middle of a batch gets the rest of it.
func TestCacheResumesInABatch(t *testing.T) {
	b := newBatched(t, 10)
	var failed atomic.Bool
	before := func(data []byte) error {
		if bytes.Contains(data, []byte(`"`+b.names[5]+`"`)) && failed.CompareAndSwap(false, true) {
			return errors.New("decoded in a bad moment")
		}
		return nil
	}
	b.decoding.before.Store(&before)
	b.write("1", b.names...)
	last := b.write("last", marker)
	eventually(t, "the cache to go on", func() bool { seen, _ := b.list("0"); return seen[marker] == last })
	if seen, _ := b.list("0"); !failed.Load() || !maps.Equal(seen, b.newest) {
		t.Errorf("the cache has %v, want %v", seen, b.newest)
	}
	eventually(t, "the batch to end", func() bool { return !b.store.feeder.gate.middle() })
}

// A watch from an object's revision does not repeat it, known or not; one from a batch
// repeats the batch.
func TestWatchRepeatsOnlyBatches(t *testing.T) {
	b := newBatched(t, 3)
	single := b.write("1", b.names[0])
	many := b.write("2", b.names[1:]...)
	b.caughtUp(t)
	repeated := func(s *forwarder, from uint64) int {
		t.Helper()
		b.store = s
		events := b.wantAll(t, b.begin(t.Context(), b.watchOptions(rv(from))), b.newest)
		return len(events)
	}
	cached := b.store
	if n := repeated(cached, single); n != 2 {
		t.Errorf("%d objects from the revision of one, want the two of the batch after it", n)
	}
	if n := repeated(cached, many); n != 2 {
		t.Errorf("%d objects from the revision of a batch, want its two", n)
	}
	for _, kind := range []string{"uncached", "uncached and unfenced, as Leases are"} {
		if kind != "uncached" {
			b.fence.unfenced = sets.New(widgets)
		}
		uncached := b.serve(false)
		if n := repeated(uncached, single); n != 2 {
			t.Errorf("%s: %d objects from the revision of one, want the two of the batch after it", kind, n)
		}
		if n := repeated(uncached, many); n != 2 {
			t.Errorf("%s: %d objects from the revision of a batch, want its two", kind, n)
		}
	}
}

// What another server has told before this one knows of it: one object, or a batch.
func TestWatchFromTheFuture(t *testing.T) {
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := newBatched(t, 10)
			held, release := b.decoding.holdAt(t, b.names[0], "1")
			b.write("1", b.names[0])
			<-held
			future := b.write("2", b.names[1:1+size]...)
			watching := b.begin(t.Context(), b.watchOptions(rv(future)))
			s := <-watching
			again := make(chan begun, 1)
			again <- s
			release()
			seen := maps.Clone(b.newest)
			events := b.wantAll(t, again, seen)
			want := 0
			if size > 1 {
				want = size
			}
			if len(events) != want {
				t.Errorf("got %v of a revision with %d objects", events, size)
			}
		})
	}
}

// A server whose cache begins at the revision of a batch does not know its events, and
// serves who has seen a part of them elsewhere.
func TestCacheBeginsAtABatch(t *testing.T) {
	b := newBatched(t, 10)
	at := b.write("1", b.names...)
	seen := maps.Clone(b.newest)
	for _, name := range b.names[2:] {
		seen[name] = 0
	}
	b.store = b.serve(true)
	b.list("0")
	if listed := b.store.feeder.listed.Load(); listed != at {
		t.Fatalf("the cache begins at %d, want %d", listed, at)
	}
	b.wantAll(t, b.begin(t.Context(), b.watchOptions(rv(at))), seen)
}

// The same is known of a list in pages, which a cache reads where it cannot watch one.
func TestCacheBeginsWithPages(t *testing.T) {
	b := newBatched(t, 10)
	for written, names := range map[int][]string{1: b.names[4:5], 2: {b.names[0], b.names[9]}} {
		at := b.write(fmt.Sprint(written), names...)
		raw := b.store.self.raw
		f := newFeeder(raw, func() runtime.Object { return emptyWidget(widgetsV1) }, &batches{}, newGate(b.clock))
		opts := b.watchOptions("")
		opts.Predicate.Limit = 3
		for {
			page := newWidgetList(widgetsV1)
			if err := f.GetList(t.Context(), widgetsKey, opts, page); err != nil {
				t.Fatal(err)
			}
			if opts.Predicate.Continue = page.GetContinue(); opts.Predicate.Continue == "" {
				break
			}
		}
		if f.listed.Load() != at || f.passed.Load() != at || f.batches.has(at) != (written > 1) {
			t.Errorf("listed at %d, want %d; with %d objects of that revision it is a batch: %v", f.listed.Load(), at, written, f.batches.has(at))
		}
	}
}

// Where the cache may have lost the first events of a batch, another way is found.
func TestBatchAtTheEdgeOfHistory(t *testing.T) {
	b := newBatched(t, 10)
	seen, _ := b.list("0")
	before := b.write("1", b.names[0])
	seen[b.names[0]] = before
	at := b.write("2", b.names...)
	for i := range keptEvents {
		b.write(fmt.Sprint(3+i), b.names[9])
	}
	b.caughtUp(t)
	for _, from := range []uint64{before, at} {
		if p := b.store.plan(from); !p.edge || p.after != before {
			t.Errorf("from %d: %+v", from, p)
		}
		events := b.wantAll(t, b.begin(t.Context(), b.watchOptions(rv(from))), seen)
		if events[b.names[0]] != 1 {
			t.Errorf("%s came %d times", b.names[0], events[b.names[0]])
		}
	}
	// Without history before the batch, etcd has it.
	b.store.Interface = noHistory{b.store.Interface, before}
	b.wantAll(t, b.begin(t.Context(), b.watchOptions(rv(at))), seen)
}

// noHistory is a cache that knows nothing before a revision.
type noHistory struct {
	storage.Interface
	oldest uint64
}

func (n noHistory) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if revision, err := versioner.ParseResourceVersion(opts.ResourceVersion); err != nil || revision > n.oldest {
		return nil, fmt.Errorf("watched from %q: %w", opts.ResourceVersion, err)
	}
	return n.Interface.Watch(ctx, key, since(opts, 1)) // too old
}

// A watch that is given up while it waits is answered at once, and nobody waits for it.
func TestStartGivenUp(t *testing.T) {
	b := newBatched(t, 10)
	_, release := b.cutOff(t, "1")
	ctx, cancel := context.WithCancel(t.Context())
	watching := b.begin(ctx, b.watchOptions("0"))
	eventually(t, "the watch to wait", func() bool { return b.store.feeder.gate.waits() == 1 })
	cancel()
	if s := <-watching; !errors.Is(s.err, context.Canceled) {
		t.Errorf("given up: %v", s.err)
	}
	release()
	b.write("2", b.names...)
	b.write("3", b.names...)
	b.caughtUp(t)
}

// A store that is destroyed while its cache is held up ends.
func TestDestroyedWhileHeld(t *testing.T) {
	b := newBatched(t, 10)
	gate := b.store.feeder.gate
	window := gate.enter(t.Context(), nil)
	b.write("1", b.names...)
	eventually(t, "the batch to be held", func() bool {
		gate.mu.Lock()
		defer gate.mu.Unlock()
		return gate.closing
	})
	b.store.feeder.mu.Lock()
	feed := b.store.feeder.current
	b.store.feeder.mu.Unlock()
	feed.Stop()
	<-feed.done
	window.leave()
	// The cache watches anew, and gets the batch.
	b.caughtUp(t)
}

// While batches are written all the time, many clients list, watch, break off and resume;
// in the end each of them has the newest revision of everything.
func TestClientsUnderBatches(t *testing.T) {
	const (
		objects  = 3000
		inABatch = 100
		clients  = 12
		rounds   = 4
	)
	b := newBatched(t, objects)
	b.fence.clock = clock.RealClock{}
	b.store = b.serve(true)
	b.store.feeder.gate.clock = clock.RealClock{}
	b.list("")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	informers := make([]*informer, clients)
	for i := range clients {
		informers[i] = &informer{s: b.store, random: rand.New(rand.NewPCG(1, uint64(i))), mode: i % 3, seen: map[string]uint64{}}
		running.Go(func() { informers[i].run(ctx) })
	}
	for round := range rounds {
		for names := range slices.Chunk(b.names, inABatch) {
			b.write(fmt.Sprint(1+round), names...)
		}
	}
	last := b.write("last", marker)
	for _, c := range informers {
		c.calm.Store(true)
	}
	eventually(t, "all clients to see the marker", func() bool {
		for _, c := range informers {
			if c.get(marker) != last {
				return false
			}
		}
		return true
	})
	stop()
	running.Wait()
	starts := 0
	for i, c := range informers {
		starts += c.starts
		stale := 0
		for name, revision := range b.newest {
			if c.seen[name] != revision {
				stale++
			}
		}
		if stale > 0 {
			t.Errorf("client %d has %d of %d objects at an old revision", i, stale, objects)
		}
	}
	t.Logf("%d watches by %d clients during %d batches", starts, clients, rounds*objects/inABatch)
}

// informer does what a client's cache does: it lists, watches and resumes. It breaks off at
// random as long as it is not calm.
type informer struct {
	s      storage.Interface
	random *rand.Rand
	mode   int // lists from the cache, consistently, or by a watch
	calm   atomic.Bool
	starts int

	mu   sync.Mutex
	seen map[string]uint64
}

func (c *informer) get(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[name]
}

func (c *informer) run(ctx context.Context) {
	revision := uint64(0)
	for ctx.Err() == nil {
		if revision == 0 && c.mode < 2 {
			seen, at, err := list(ctx, c.s, []string{"0", ""}[c.mode])
			if err != nil {
				continue
			}
			c.mu.Lock()
			c.seen, revision = seen, at
			c.mu.Unlock()
		}
		revision = c.watch(ctx, revision)
		if !c.calm.Load() && c.random.IntN(40) == 0 {
			revision = 0
		}
	}
}

// watch returns the revision to go on from, or 0.
func (c *informer) watch(ctx context.Context, revision uint64) uint64 {
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	opts := storage.ListOptions{ResourceVersion: rv(revision), Predicate: predicate, Recursive: true}
	initial := revision == 0
	if initial {
		yes := true
		opts.ResourceVersion, opts.SendInitialEvents = "", &yes
	}
	w, err := c.s.Watch(ctx, widgetsKey, opts)
	if err != nil {
		return 0
	}
	defer w.Stop()
	c.starts++
	events := c.random.IntN(150)
	collected := map[string]uint64{}
	for n := 0; n < events || c.calm.Load(); n++ {
		var event watch.Event
		var ok bool
		select {
		case event, ok = <-w.ResultChan():
		case <-ctx.Done():
			return revision
		}
		if !ok {
			break
		}
		if event.Type == watch.Error {
			return 0
		}
		m, err := meta.Accessor(event.Object)
		if err != nil {
			return 0
		}
		at, err := versioner.ParseResourceVersion(m.GetResourceVersion())
		if err != nil {
			return 0
		}
		switch {
		case event.Type == watch.Bookmark:
			if initial {
				c.mu.Lock()
				c.seen = collected
				c.mu.Unlock()
			}
			initial, revision = false, at
		case initial:
			collected[m.GetName()] = at
			n--
		default:
			c.mu.Lock()
			c.seen[m.GetName()] = at
			c.mu.Unlock()
			revision = at
		}
	}
	return revision
}
