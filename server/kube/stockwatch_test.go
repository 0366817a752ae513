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

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/beside"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

const widgetsPrefix = registry + "example.com/widgets/default/"

// modes are the ways in which clients list objects.
var modes = map[string]func(context.Context, dynamic.ResourceInterface) (beside.Told, watch.Interface, error){
	"cached": func(ctx context.Context, c dynamic.ResourceInterface) (beside.Told, watch.Interface, error) {
		return beside.List(ctx, c, "0")
	},
	"consistent": func(ctx context.Context, c dynamic.ResourceInterface) (beside.Told, watch.Interface, error) {
		return beside.List(ctx, c, "")
	},
	"streamed": streamed,
}

// errWatchEnded is the error of a list by a watch that the server has ended, which it does for
// clients that read too slowly.
var errWatchEnded = errors.New("the watch ended before its bookmark")

// streamed lists by a watch with sendInitialEvents.
func streamed(ctx context.Context, c dynamic.ResourceInterface) (beside.Told, watch.Interface, error) {
	w, err := c.Watch(ctx, metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	if err != nil {
		return beside.Told{}, nil, err
	}
	seen := beside.Told{Mode: "a watch with sendInitialEvents", Listed: map[string]int64{}}
	for event := range w.ResultChan() {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return beside.Told{}, w, fmt.Errorf("%s %v", event.Type, event.Object)
		}
		name, revision, err := beside.Seen(object)
		if err != nil {
			return beside.Told{}, w, err
		}
		if event.Type == watch.Bookmark {
			seen.At = revision
			return seen, w, nil
		}
		seen.Listed[name] = revision
	}
	return beside.Told{}, w, errWatchEnded
}

// TestStockServerWatchesARewrite: while objects are rewritten in the etcd of a stock
// kube-apiserver, its lists and watches agree with raw etcd: each list has the state at its
// resourceVersion, each watch has every write once and in order, and objects that were read can be
// updated.
func TestStockServerWatchesARewrite(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(stock, "stock")
	const n, rounds, clients = 1500, 4, 6
	s.createWidgets(1)
	template, err := c.Raw.Get(t.Context(), widgetsPrefix+"w-0")
	if err != nil || len(template.Kvs) != 1 {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		name := fmt.Sprintf("w-%d", i)
		value := strings.ReplaceAll(string(template.Kvs[0].Value), `"w-0"`, strconv.Quote(name))
		if _, err := c.Raw.Put(t.Context(), widgetsPrefix+name, value); err != nil {
			t.Fatal(err)
		}
	}
	fence := "/fence"
	fenced, err := c.Raw.Put(t.Context(), fence, "")
	must(t, err)
	config := s.as(adminToken)
	config.Timeout = 0 // for watches
	dynamicClient, err := dynamic.NewForConfig(config)
	must(t, err)
	objects := dynamicClient.Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	// The record does not have earlier writes, so the server's cache must have these before it
	// begins.
	eventually(t, time.Minute, "the stock server's cache has all objects", func(ctx context.Context) error {
		list, err := objects.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil && len(list.Items) < n {
			err = fmt.Errorf("%d are listed", len(list.Items))
		}
		return err
	})
	stop := beside.Record(t, c.Raw)

	ctx, end := context.WithCancel(t.Context())
	defer end()
	var mu sync.Mutex
	var all []beside.Told
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
					most := 1 + random.IntN(800)
					err = seen.Follow(following, w, func() bool { return len(seen.Events) == most })
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
	// One client watches all the time, and resumes its watch.
	whole, w, err := beside.List(ctx, objects, "")
	must(t, err)
	group.Go(func() error {
		complete := func() bool { return len(whole.Events) == n*rounds }
		for err := whole.Follow(ctx, w, complete); ; err = whole.Follow(ctx, w, complete) {
			if err != nil || complete() || ctx.Err() != nil {
				return err
			}
			if w, err = objects.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(whole.Last(), 10)}); err != nil {
				return err
			}
		}
	})

	readings := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(all)
	}
	kv := migratestore.NewEtcd(c.Raw)
	for round := range rounds {
		to := agree.Encoding([]string{"example.com/v2", "example.com/v1"}[round%2])
		result, err := migratestore.New(kv).Run(t.Context(), migratestore.Target{
			GroupResource: widgets, Encoding: to, Prefix: registry + "example.com/widgets/", FenceKey: fence, FenceRevision: fenced.Header.Revision,
			Convert: func(_ context.Context, plains [][]byte, _ func(error)) []migratestore.Converted {
				converted := make([]migratestore.Converted, len(plains))
				for i, plain := range plains {
					renamed, ok := migratestore.Rename(plain, to)
					if converted[i].Plain = renamed; !ok {
						converted[i] = migratestore.Converted{Reason: migratestore.Undecodable, Err: fmt.Errorf("%s cannot be renamed", plain)}
					}
				}
				return converted
			},
		}, migratestore.Options{}, nil)
		if err != nil || result.Rewritten != n {
			t.Fatalf("round %d: %+v, %v", round, result.Progress, err)
		}
		if round < rounds-1 {
			// Each client lists at least once between two rounds.
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
	must(t, group.Wait())
	h := stop().Under(registry + "example.com/widgets/")
	if puts := len(h.After(0)); puts != n*rounds || len(whole.Events) != n*rounds {
		t.Errorf("%d writes in etcd, and %d in a watch from before them until after them", puts, len(whole.Events))
	}
	h.Check(t, whole)
	events, during := 0, 0
	for _, c := range all {
		h.Check(t, c)
		events += len(c.Events)
		if at := len(h.After(c.At)); at > 0 && at < n*rounds {
			during++
		}
	}
	t.Logf("%d lists, %d of them between two writes, and %d events", len(all), during, events)
	if during < clients || events < n {
		t.Error("hardly anything was read during the rewrites")
	}
	list, err := objects.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	must(t, err)
	for _, item := range list.Items[:50] {
		item.SetLabels(map[string]string{"updated": "true"})
		if _, err := objects.Update(t.Context(), &item, metav1.UpdateOptions{}); err != nil {
			t.Errorf("update of what was listed: %v", err)
		}
	}
}
