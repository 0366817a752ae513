package fence

import (
	"bytes"
	"cmp"
	"context"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/testbed/linear"
)

// names are the names of the widgets.
var names = []string{"a", "b", "c", "d"}

// linearWorld is a world whose clients' calls on widgets are recorded. The recorded value of a widget is its size.
type linearWorld struct {
	*world
	history *linear.History
	// servers are all servers so far, the newest last; each flip begins a new one. Old servers are still called, as by
	// requests that found their handler before the flip.
	servers atomic.Pointer[[]server]

	// fromCache and fromEtcd count the answered lists, cutOff the calls that were cut off because their server died.
	fromCache, fromEtcd, cutOff atomic.Int64

	mu    sync.Mutex
	lists []listed
}

// listed is one answered list: its revision, and the revision of each widget by name.
type listed struct {
	revision  int64
	revisions map[string]int64
}

// server is a store whose context ends when it is killed, which cuts off all its calls under way.
type server struct {
	storage.Interface
	life   context.Context
	kill   func()
	cached bool
}

// flip changes the resource's storage version, as a server does: its new report closes the old stores, and a new store
// writes the new version.
func (l *linearWorld) flip(stored schema.GroupVersion, others ...agree.Report) {
	enc := agree.Encoding(stored.String())
	revision := l.report(widgets, append(others, by(self, enc))...)
	old := *l.servers.Load()
	// Every second server answers lists from a watch cache.
	s, _ := l.widgetStore(widgetsV1, stored, len(old)%2 == 1)
	life, kill := context.WithCancel(l.Context())
	all := append(slices.Clone(old), server{s, life, kill, len(old)%2 == 1})
	l.servers.Store(&all)
	l.permits.grant(widgets, enc, revision)
}

// client makes calls one after the other. The context of some calls ends before the answer.
func (l *linearWorld) client(id, calls int) {
	rng := rand.New(rand.NewPCG(uint64(id), 7))
	for n := range calls {
		all := *l.servers.Load()
		s := all[len(all)-1-rng.IntN(min(2, len(all)))]
		if s.life.Err() != nil {
			s = all[len(all)-1]
		}
		in := linear.Call{Verb: []string{linear.Create, linear.Update, linear.Update, linear.Get, "list", linear.Delete}[rng.IntN(6)], Name: names[rng.IntN(len(names))]}
		if in.Verb == linear.Create || in.Verb == linear.Update {
			in.Value = fmt.Sprintf("%d-%d", id, n)
		}
		ctx, kill := context.WithCancel(s.life)
		if rng.IntN(6) == 0 {
			timer := time.AfterFunc(time.Duration(rng.IntN(2000))*time.Microsecond, kill)
			defer timer.Stop()
		}
		began := l.history.Now()
		if in.Verb == "list" {
			if sizes, read := l.list(ctx, s); read {
				l.history.Record(began, sizes)
				if s.cached {
					l.fromCache.Add(1)
				} else {
					l.fromEtcd.Add(1)
				}
			}
		} else if out, happened := l.make(ctx, s, in); happened {
			l.history.Record(began, map[linear.Call]linear.Answer{in: out})
			if out.Unknown && s.life.Err() != nil {
				l.cutOff.Add(1)
			}
		}
		kill()
	}
}

// list reads all widgets, and says whether it was answered. The list is kept, to be compared with etcd's history at the
// end.
func (l *linearWorld) list(ctx context.Context, s storage.Interface) (map[linear.Call]linear.Answer, bool) {
	got := newWidgetList(widgetsV1)
	err := s.GetList(ctx, "/example.com/widgets/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, got)
	switch {
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err), ctx.Err() != nil:
		return nil, false
	case err != nil:
		l.Errorf("list: %v", err)
		return nil, false
	}
	l.keep(got)
	sizes := map[string]string{}
	for _, item := range got.Items {
		sizes[item.GetName()] = sizeOf(&item)
	}
	return linear.Listed(names, sizes), true
}

// keep remembers a list.
func (l *linearWorld) keep(got *unstructured.UnstructuredList) {
	list := listed{revision: l.revision(got.GetResourceVersion()), revisions: map[string]int64{}}
	for _, item := range got.Items {
		list.revisions[item.GetName()] = l.revision(item.GetResourceVersion())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists = append(l.lists, list)
}

func (l *linearWorld) revision(text string) int64 {
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		l.Errorf("resourceVersion: %v", err)
	}
	return revision
}

// compareLists compares each list with the widgets that etcd had at the list's revision. changes are all changes of
// widgets, in order.
func (l *linearWorld) compareLists(changes []*clientv3.Event) {
	l.Helper()
	slices.SortFunc(l.lists, func(a, b listed) int { return cmp.Compare(a.revision, b.revision) })
	held := map[string]int64{}
	for _, list := range l.lists {
		for len(changes) > 0 && changes[0].Kv.ModRevision <= list.revision {
			if name := nameOf(changes[0]); changes[0].Type == clientv3.EventTypeDelete {
				delete(held, name)
			} else {
				held[name] = changes[0].Kv.ModRevision
			}
			changes = changes[1:]
		}
		if !maps.Equal(held, list.revisions) {
			l.Errorf("a list at revision %d has %v, etcd had %v", list.revision, list.revisions, held)
		}
	}
}

// nameOf returns the name of the widget that changed.
func nameOf(e *clientv3.Event) string {
	return string(e.Kv.Key[bytes.LastIndexByte(e.Kv.Key, '/')+1:])
}

// make makes a call, and says whether it may have been done.
func (l *linearWorld) make(ctx context.Context, s storage.Interface, in linear.Call) (out linear.Answer, happened bool) {
	key, got := "/example.com/widgets/"+in.Name, emptyWidget(widgetsV1)
	var before string
	var err error
	switch in.Verb {
	case linear.Create:
		err = s.Create(ctx, key, widget(widgetsV1, in.Name, in.Value), got, 0)
	case linear.Update:
		err = s.GuaranteedUpdate(ctx, key, got, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			u := obj.(*unstructured.Unstructured)
			before = sizeOf(u)
			return u, unstructured.SetNestedField(u.Object, in.Value, "spec", "size")
		}), nil)
	case linear.Delete:
		if err = s.Delete(ctx, key, got, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err == nil {
			before = sizeOf(got)
		}
	default:
		if err = s.Get(ctx, key, storage.GetOptions{}, got); err == nil {
			before = sizeOf(got)
		}
	}
	switch {
	case err == nil:
		return linear.Answer{Value: before}, true
	case in.Verb == linear.Get && storage.IsNotFound(err):
		return linear.Answer{}, true
	case storage.IsNotFound(err), storage.IsExist(err):
		return linear.Answer{Refused: true}, true
	case apierrors.IsServiceUnavailable(err):
		return linear.Answer{}, false // nothing was written
	case ctx.Err() != nil:
		return linear.Answer{Unknown: true}, true
	}
	l.Errorf("%+v: %v", in, err)
	return linear.Answer{}, false
}

func sizeOf(u *unstructured.Unstructured) string {
	size, _, _ := unstructured.NestedString(u.Object, "spec", "size")
	return size
}

// TestLinearizable has clients create, update, delete and read a few widgets while the storage version flips, other
// servers join and leave, and clients and servers die. Each widget must behave as one register (be linearizable), a
// list must have all widgets at one revision, and a watch from the beginning must get every change once and in order.
func TestLinearizable(t *testing.T) {
	const clients, calls = 5, 120
	l := &linearWorld{world: newWorld(t), history: linear.NewHistory()}
	l.fence.clock = clock.RealClock{}
	l.servers.Store(&[]server{})
	l.flip(widgetsV1)
	first := *l.servers.Load()
	from := l.report(widgets, by(self, encV1))
	l.permits.grant(widgets, encV1, from)
	w, err := first[0].Watch(t.Context(), "/example.com/widgets/", storage.ListOptions{ResourceVersion: fmt.Sprint(from), Recursive: true, Predicate: storage.Everything})
	must(t, err)
	defer w.Stop()
	var running sync.WaitGroup
	for id := range clients {
		running.Go(func() { l.client(id, calls) })
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	flips := 0
	for ended := false; !ended; flips++ {
		stored := []schema.GroupVersion{widgetsV2, widgetsV1}[flips%2]
		if flips%3 == 0 {
			l.flip(stored, by(other, agree.Encoding(stored.String())))
		} else {
			l.flip(stored)
		}
		if flips%4 == 3 { // all servers but the newest die
			all := *l.servers.Load()
			for _, s := range all[:len(all)-1] {
				s.kill()
			}
		}
		l.report(widgets, by(self, agree.Encoding(stored.String()))) // the other server leaves, which this server is not told
		written := l.history.Len()
		eventually(t, "calls between two flips", func() bool {
			select {
			case <-done:
				ended = true
			default:
			}
			return ended || l.history.Len() > written+20
		})
	}
	if err := l.history.Check(5 * time.Minute); err != nil {
		t.Error(err)
	}
	unknown := l.history.Unknown()
	changes := l.watched(w, from)
	t.Logf("%d calls in %d flips, %d without an answer (%d of servers that died), %d and %d lists, %d changes",
		l.history.Len(), flips, unknown, l.cutOff.Load(), l.fromCache.Load(), l.fromEtcd.Load(), changes)
	if flips < 4 || unknown == 0 || l.fromCache.Load() == 0 || l.fromEtcd.Load() == 0 || changes < calls {
		t.Error("too little has happened")
	}
}

// watched compares the events of the watch, and the lists, with etcd's own history. It returns the number of changes.
func (l *linearWorld) watched(w watch.Interface, from int64) int {
	l.Helper()
	end, err := testEtcd.Put(l.Context(), l.prefix+"/example.com/widgets/end", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"end"}}`)
	must(l, err)
	var want, got []string
	var changes []*clientv3.Event
	ctx, cancel := context.WithTimeout(l.Context(), patience)
	defer cancel()
	for resp := range testEtcd.Watch(ctx, l.prefix+"/example.com/widgets/", clientv3.WithPrefix(), clientv3.WithRev(from+1)) {
		for _, e := range resp.Events {
			kind := watch.Modified
			switch {
			case e.Type == clientv3.EventTypeDelete:
				kind = watch.Deleted
			case e.IsCreate():
				kind = watch.Added
			}
			changes = append(changes, e)
			want = append(want, fmt.Sprintf("%s %s@%d", kind, nameOf(e), e.Kv.ModRevision))
		}
		if resp.Header.Revision >= end.Header.Revision {
			break
		}
	}
	l.compareLists(changes)
	for len(got) < len(want) {
		select {
		case e := <-w.ResultChan():
			obj, err := meta.Accessor(e.Object)
			if err != nil {
				l.Fatalf("the watch has %v: %v", e, err)
			}
			got = append(got, fmt.Sprintf("%s %s@%s", e.Type, obj.GetName(), obj.GetResourceVersion()))
		case <-ctx.Done():
			l.Fatalf("the watch has seen %d of %d changes", len(got), len(want))
		}
	}
	if !slices.Equal(got, want) {
		l.Errorf("the watch has seen\n%v\nand etcd has\n%v", got, want)
	}
	return len(want)
}
