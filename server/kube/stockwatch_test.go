package kube_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/rewrite"
)

const widgetsPrefix = registry + "example.com/widgets/default/"

// history is what raw etcd says was written of the widgets, in order.
type history struct {
	// first are the revisions of the objects when it begins, by name.
	first map[string]int64
	puts  []written
}

type written struct {
	name     string
	revision int64
}

// record follows raw etcd from now until what it returns is called. More than one write at
// a revision is an error.
func (c *control) record() (stop func() history) {
	c.t.Helper()
	now, err := c.raw.Get(c.t.Context(), widgetsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		c.t.Fatal(err)
	}
	h := history{first: map[string]int64{}}
	for _, kv := range now.Kvs {
		h.first[strings.TrimPrefix(string(kv.Key), widgetsPrefix)] = kv.ModRevision
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	following := c.raw.Watch(ctx, registry+"example.com/", clientv3.WithPrefix(), clientv3.WithRev(now.Header.Revision+1))
	const end = registry + "example.com/-end"
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := int64(0)
		for answer := range following {
			for _, e := range answer.Events {
				if string(e.Kv.Key) == end {
					return
				}
				if e.Kv.ModRevision <= last {
					c.t.Errorf("%s was written at revision %d, after one at %d", e.Kv.Key, e.Kv.ModRevision, last)
				}
				last = e.Kv.ModRevision
				h.puts = append(h.puts, written{strings.TrimPrefix(string(e.Kv.Key), widgetsPrefix), last})
			}
		}
	}()
	return func() history {
		if _, err := c.raw.Put(c.t.Context(), end, ""); err != nil {
			c.t.Fatal(err)
		}
		<-done
		return h
	}
}

// at are the revisions of all objects as of a revision.
func (h history) at(revision int64) map[string]int64 {
	all := maps.Clone(h.first)
	for _, w := range h.puts {
		if w.revision > revision {
			break
		}
		all[w.name] = w.revision
	}
	return all
}

// after is what was written after a revision.
func (h history) after(revision int64) []written {
	at, _ := slices.BinarySearchFunc(h.puts, revision+1, func(w written, revision int64) int { return int(w.revision - revision) })
	return h.puts[at:]
}

// told is what a client was told: a list and the events that followed it.
type told struct {
	mode   string
	at     int64
	listed map[string]int64
	events []written
}

// check holds it against raw etcd: the list is the state at its revision, and the events are
// all writes after that, up to the last one.
func (h history) check(t *testing.T, c told) {
	t.Helper()
	if want := h.at(c.at); !maps.Equal(c.listed, want) {
		wrong := 0
		for name, revision := range want {
			if c.listed[name] != revision {
				wrong++
			}
		}
		t.Errorf("%s: of a list at revision %d %d of %d objects are not as they were then", c.mode, c.at, wrong, len(want))
	}
	want := h.after(c.at)
	want = want[:min(len(want), len(c.events))]
	if !slices.Equal(c.events, want) {
		t.Errorf("%s: after revision %d the watch told of %d writes, which are not those in etcd", c.mode, c.at, len(c.events))
	}
}

// modes are the ways in which clients list.
var modes = map[string]func(context.Context, dynamic.ResourceInterface) (told, watch.Interface, error){
	"cached": func(ctx context.Context, c dynamic.ResourceInterface) (told, watch.Interface, error) {
		return listed(ctx, c, "0")
	},
	"consistent": func(ctx context.Context, c dynamic.ResourceInterface) (told, watch.Interface, error) {
		return listed(ctx, c, "")
	},
	"streamed": streamed,
}

func revisionOf(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

// listed lists, and watches from there.
func listed(ctx context.Context, c dynamic.ResourceInterface, resourceVersion string) (told, watch.Interface, error) {
	list, err := c.List(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	if err != nil {
		return told{}, nil, err
	}
	seen := told{mode: fmt.Sprintf("a list with resourceVersion %q", resourceVersion), listed: map[string]int64{}}
	if seen.at, err = revisionOf(list.GetResourceVersion()); err != nil {
		return told{}, nil, err
	}
	for _, item := range list.Items {
		if seen.listed[item.GetName()], err = revisionOf(item.GetResourceVersion()); err != nil {
			return told{}, nil, err
		}
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	return seen, w, err
}

// errWatchEnded is what becomes of a list by a watch if the server ends it: it does so with who
// does not keep up.
var errWatchEnded = errors.New("the watch ended before its bookmark")

// streamed lists by a watch.
func streamed(ctx context.Context, c dynamic.ResourceInterface) (told, watch.Interface, error) {
	w, err := c.Watch(ctx, metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	if err != nil {
		return told{}, nil, err
	}
	seen := told{mode: "a watch with sendInitialEvents", listed: map[string]int64{}}
	for event := range w.ResultChan() {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return told{}, w, fmt.Errorf("%s %v", event.Type, event.Object)
		}
		revision, err := revisionOf(object.GetResourceVersion())
		if err != nil {
			return told{}, w, err
		}
		if event.Type == watch.Bookmark {
			seen.at = revision
			return seen, w, nil
		}
		seen.listed[object.GetName()] = revision
	}
	return told{}, w, errWatchEnded
}

// follow takes in at most so many events. A server ends the watch of who does not keep up.
func (c *told) follow(ctx context.Context, w watch.Interface, most int) error {
	defer w.Stop()
	for len(c.events) < most {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			object, is := event.Object.(*unstructured.Unstructured)
			if !is {
				return fmt.Errorf("the watch was told %s %v", event.Type, event.Object)
			}
			if event.Type == watch.Bookmark {
				continue
			}
			revision, err := revisionOf(object.GetResourceVersion())
			if err != nil {
				return err
			}
			c.events = append(c.events, written{object.GetName(), revision})
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// While objects are rewritten in the etcd of a stock kube-apiserver, its lists and watches are
// as raw etcd has them: each list is the state at its resourceVersion, each watch tells of
// every write once, in order, and what was read can be updated.
func TestStockServerWatchesARewrite(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(stock, "stock")
	const n, rounds, clients = 1500, 4, 6
	s.createWidgets(1)
	template, err := c.raw.Get(t.Context(), widgetsPrefix+"w-0")
	if err != nil || len(template.Kvs) != 1 {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		name := fmt.Sprintf("w-%d", i)
		value := strings.ReplaceAll(string(template.Kvs[0].Value), `"w-0"`, strconv.Quote(name))
		if _, err := c.raw.Put(t.Context(), widgetsPrefix+name, value); err != nil {
			t.Fatal(err)
		}
	}
	fence := "/fence"
	fenced, err := c.raw.Put(t.Context(), fence, "")
	if err != nil {
		t.Fatal(err)
	}
	stop := c.record()

	config := s.as(adminToken)
	config.Timeout = 0 // watches
	objects := must(t, dynamic.NewForConfig, config).Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var mu sync.Mutex
	var all []told
	var over atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	for i := range clients {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		names := slices.Sorted(maps.Keys(modes))
		group.Go(func() error {
			for !over.Load() {
				seen, w, err := modes[names[random.IntN(len(names))]](ctx, objects)
				if err == nil {
					following, cancel := context.WithTimeout(ctx, time.Second)
					err = seen.follow(following, w, 1+random.IntN(800))
					cancel()
				}
				if errors.Is(err, errWatchEnded) {
					continue
				}
				if err != nil {
					return err
				}
				mu.Lock()
				all = append(all, seen)
				mu.Unlock()
			}
			return nil
		})
	}
	// One that watches all the time, and resumes.
	whole, w, err := listed(ctx, objects, "")
	if err != nil {
		t.Fatal(err)
	}
	group.Go(func() error {
		for err := whole.follow(ctx, w, n*rounds); ; err = whole.follow(ctx, w, n*rounds) {
			if err != nil || len(whole.events) == n*rounds || ctx.Err() != nil {
				return err
			}
			at := whole.at
			if seen := len(whole.events); seen > 0 {
				at = whole.events[seen-1].revision
			}
			if w, err = objects.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(at, 10)}); err != nil {
				return err
			}
		}
	})

	readings := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(all)
	}
	kv := rewrite.NewEtcd(c.raw)
	for round := range rounds {
		to := agree.Encoding([]string{"example.com/v2", "example.com/v1"}[round%2])
		result, err := rewrite.New(kv).Run(t.Context(), rewrite.Target{
			GroupResource: widgets, Encoding: to, Prefix: registry + "example.com/widgets/", FenceKey: fence, FenceRevision: fenced.Header.Revision,
			Convert: func(_ context.Context, plains [][]byte) []rewrite.Converted {
				converted := make([]rewrite.Converted, len(plains))
				for i, plain := range plains {
					renamed, ok := rewrite.Rename(plain, to)
					if converted[i].Plain = renamed; !ok {
						converted[i] = rewrite.Converted{Reason: rewrite.Undecodable, Err: fmt.Errorf("%s cannot be renamed", plain)}
					}
				}
				return converted
			},
		}, rewrite.Options{}, nil)
		if err != nil || result.Rewritten != n {
			t.Fatalf("round %d: %+v, %v", round, result.Progress, err)
		}
		if round < rounds-1 {
			// Each client reads at least once between this round and the next.
			before := readings()
			eventually(t, time.Minute, "clients read between two rounds", func(context.Context) error {
				if n := readings() - before; n < 2*clients && ctx.Err() == nil {
					return fmt.Errorf("%d did", n)
				}
				return nil
			})
		}
	}
	over.Store(true)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	h := stop()
	if len(h.puts) != n*rounds || len(whole.events) != n*rounds {
		t.Errorf("%d writes in etcd, and %d in a watch from before them until after them", len(h.puts), len(whole.events))
	}
	h.check(t, whole)
	events, during := 0, 0
	for _, c := range all {
		h.check(t, c)
		events += len(c.events)
		if at := len(h.after(c.at)); at > 0 && at < len(h.puts) {
			during++
		}
	}
	t.Logf("%d lists, %d of them between two writes, and %d events", len(all), during, events)
	if during < clients || events < n {
		t.Error("hardly anything was read during the rewrites")
	}
	list, err := objects.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items[:50] {
		item.SetLabels(map[string]string{"updated": "true"})
		if _, err := objects.Update(t.Context(), &item, metav1.UpdateOptions{}); err != nil {
			t.Errorf("update of what was listed: %v", err)
		}
	}
}
