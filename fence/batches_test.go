package fence

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// events are those of one response, by how many each of its revisions has.
func events(first int64, counts ...int) (all []*mvccpb.Event) {
	for i, n := range counts {
		for range n {
			all = append(all, &mvccpb.Event{Kv: &mvccpb.KeyValue{ModRevision: first + int64(i)}})
		}
	}
	return all
}

func TestBatchesObserve(t *testing.T) {
	b := &batches{}
	b.observe(nil)
	b.observe(events(5, 1, 3, 1, 2))
	b.observe(events(9, 1))
	b.observe(events(2, 2)) // a watch that started earlier
	b.observe(events(6, 2)) // a watch of some of the keys
	b.observe(events(3, 1, 1))
	want := map[uint64]int{2: 2, 6: 3, 8: 2}
	for revision := range uint64(12) {
		if got := b.size(revision); got != want[revision] {
			t.Errorf("revision %d has %d events, want %d", revision, got, want[revision])
		}
	}
}

// The oldest batches are forgotten, and only they.
func TestBatchesAreBounded(t *testing.T) {
	b := &batches{}
	for i := range 2 * maxBatches {
		b.observe(events(int64(2*i+1), 2))
	}
	b.note(2, 2) // older than all
	if n := len(b.all); n > maxBatches {
		t.Errorf("%d are remembered", n)
	}
	for i := range maxBatches / 2 {
		if revision := uint64(2*(2*maxBatches-1-i) + 1); !b.has(revision) || b.has(revision+1) {
			t.Fatalf("%d: %v, and the one after it %v", revision, b.has(revision), b.has(revision+1))
		}
	}
}

// A batch waits for those who start before it, but not for long; others wait for its end.
func TestGate(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	g := newGate(fake)
	early := g.enter(t.Context(), nil)
	begun := make(chan bool)
	go func() { begun <- g.begin(nil) }()
	eventually(t, "the batch to wait", fake.HasWaiters)
	late := make(chan *window)
	enter := func() { late <- g.enter(t.Context(), nil) }
	go enter()
	eventually(t, "the late one to wait", func() bool { return g.waits() == 1 })
	early.leave()
	if !<-begun || !g.middle() {
		t.Fatal("no batch begins when the window is empty")
	}
	g.end()
	stuck := <-late
	if g.middle() {
		t.Error("let in in the middle of a batch")
	}
	go func() { begun <- g.begin(nil) }()
	eventually(t, "the batch to wait", fake.HasWaiters)
	fake.Step(maxHold)
	if !<-begun {
		t.Fatal("no batch begins while somebody stays in the window")
	}
	g.end()
	// Having waited that long, the next one does not wait at all.
	next := g.enter(t.Context(), nil)
	if !g.begin(nil) {
		t.Fatal("no batch begins after one that waited")
	}
	next.leave()
	g.end()
	// And who stayed in a window that is over holds nobody.
	fake.Step(maxHold)
	if !g.begin(nil) {
		t.Fatal("no batch begins while somebody stays in an old window")
	}
	stuck.leave()
	g.end()
	g.end()
	if g.seq.Load() != 8 {
		t.Errorf("seq is %d after four batches", g.seq.Load())
	}
	if !g.begin(nil) {
		t.Fatal("no batch begins")
	}
	timeout := make(chan time.Time, 1)
	timeout <- time.Time{}
	if g.enter(t.Context(), timeout) != nil || g.waits() != 0 {
		t.Error("let in, or still waiting, after a timeout")
	}
}

// A batch that is not begun since its watch ends lets those in who waited for it.
func TestGateStopped(t *testing.T) {
	g := newGate(clocktesting.NewFakeClock(time.Now()))
	early := g.enter(t.Context(), nil)
	stop, begun := make(chan struct{}), make(chan bool)
	go func() { begun <- g.begin(stop) }()
	late := make(chan *window)
	eventually(t, "the batch to wait", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.closing
	})
	go func() { late <- g.enter(t.Context(), nil) }()
	eventually(t, "the late one to wait", func() bool { return g.waits() == 1 })
	close(stop)
	if <-begun || g.middle() {
		t.Error("a batch began although its watch has ended")
	}
	(<-late).leave()
	early.leave()
	if !g.begin(nil) {
		t.Error("no batch begins afterwards")
	}
}

// Who finds seq as it was, and even, met no batch; nobody is left behind.
func TestGateExcludes(t *testing.T) {
	g := newGate(clock.RealClock{})
	var inBatch atomic.Bool
	stop, batches := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(batches)
		for g.begin(stop) {
			inBatch.Store(true)
			runtime.Gosched()
			inBatch.Store(false)
			g.end()
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(2000))*time.Microsecond)
				if w := g.enter(ctx, nil); w != nil {
					seq := g.seq.Load()
					met := inBatch.Load()
					if met && seq%2 == 0 && g.seq.Load() == seq {
						t.Error("met a batch without noticing")
					}
					w.leave()
				}
				cancel()
			}
		})
	}
	running.Wait()
	close(stop)
	<-batches
	if g.waits() != 0 || g.window.inside != 0 {
		t.Errorf("%d wait and %d are inside in the end", g.waits(), g.window.inside)
	}
}

// A batch of which fewer events come than were seen is over when the next one comes.
func TestFeederEndsABatchOfFewer(t *testing.T) {
	source := make(channelWatch, 3)
	seen := &batches{}
	seen.note(5, 3)
	f := newFeeder(watchOf{w: source}, func() kruntime.Object { return &corev1.ConfigMap{} }, seen, newGate(clock.RealClock{}))
	w, err := f.Watch(t.Context(), "", storage.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, revision := range []string{"5", "5", "6"} {
		source <- watch.Event{Type: watch.Modified, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: revision}}}
	}
	for _, want := range []struct {
		kind     watch.EventType
		revision uint64
		over     bool
	}{{watch.Modified, 5, false}, {watch.Modified, 5, false}, {watch.Bookmark, 5, false}, {watch.Modified, 6, true}} {
		event := <-w.ResultChan()
		if _, revision := object(t, event); event.Type != want.kind || revision != want.revision {
			t.Errorf("got %v of %d, want %v of %d", event.Type, revision, want.kind, want.revision)
		}
		if want.over && f.gate.middle() {
			t.Error("the batch is not over")
		}
	}
}

// BenchmarkFeeder measures what handing events over one by one adds to each, where there
// are no batches:
//
//	go test -run '^$' -bench Feeder ./fence
func BenchmarkFeeder(b *testing.B) {
	for name, fed := range map[string]bool{"direct": false, "fed": true} {
		b.Run(name, func(b *testing.B) {
			source := make(chan watch.Event, 100)
			var w watch.Interface = channelWatch(source)
			if fed {
				f := newFeeder(watchOf{w: w}, func() kruntime.Object { return &corev1.ConfigMap{} }, &batches{}, newGate(clock.RealClock{}))
				var err error
				if w, err = f.Watch(b.Context(), "", storage.ListOptions{ResourceVersion: "1"}); err != nil {
					b.Fatal(err)
				}
				defer w.Stop()
			}
			b.ReportAllocs()
			go func() {
				defer close(source)
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "123456"}}
				for range b.N {
					source <- watch.Event{Type: watch.Modified, Object: object}
				}
			}()
			for range w.ResultChan() {
			}
		})
	}
}

type channelWatch chan watch.Event

func (c channelWatch) ResultChan() <-chan watch.Event { return c }
func (c channelWatch) Stop()                          {}

type watchOf struct {
	storage.Interface
	w watch.Interface
}

func (s watchOf) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return s.w, nil
}
