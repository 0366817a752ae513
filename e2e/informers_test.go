package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/linear"
	"github.com/concord-dev/concord/testbed/load"
)

// testInformers: informers that are started, interrupted and resumed while objects are migrated, on
// one server or on several, have the newest resourceVersion of every object afterwards: their
// clients' next updates meet no conflict.
func testInformers(t *testing.T) {
	const (
		objects   = 2000
		informers = 12
	)
	random, _ := seeded(t)
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Args: "--migration-max-objects-per-second=2000"}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, objects)
	c.WaitSettled()
	var clients []dynamic.ResourceInterface
	for _, s := range servers {
		clients = append(clients, s.Dynamic().Resource(widgetsV1.GroupVersionResource).Namespace(metav1.NamespaceDefault))
	}

	var calm atomic.Bool
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	all := make([]*restless, informers)
	for i := range all {
		all[i] = &restless{
			random: rand.New(rand.NewPCG(random.Uint64(), 0)),
			calm:   &calm,
			// A third of the informers use only the first server, a third only the others, and a third all of them.
			clients: [][]dynamic.ResourceInterface{clients[:1], clients[1:], clients}[i%3],
		}
		group.Go(func() error { return all[i].run(ctx) })
	}
	for i, to := range []string{"v2", "v1", "v2"} {
		calm.Store(false)
		storeWidgetsIn(t, servers[i%2], to)
		t.Logf("settled %v after the change to %s", c.WaitSettled().Round(time.Millisecond), to)
		calm.Store(true)
		wantEncoding(t, c, widgets, widgetEncoding(to), objects+i)
		last := fmt.Sprint("after-", to, "-", i)
		must(t, load.Fill(t.Context(), load.Endpoint{Name: "one", Client: servers[0].Dynamic()}, widgetsV1, last, 1))
		wantNewest(t, all, clients[0], last+"-0")
	}
	starts, resumed := 0, 0
	for _, r := range all {
		starts, resumed = starts+int(r.starts.Load()), resumed+int(r.resumed.Load())
	}
	t.Logf("%d caches were started and %d watches resumed", starts, resumed)
	if resumed < informers {
		t.Error("hardly a watch was resumed: nothing was tested")
	}
	stop()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	c.Check()
}

// wantNewest waits until all caches have the object that was written last, and then expects all
// objects in them to be as they are stored.
func wantNewest(t *testing.T, all []*restless, client dynamic.ResourceInterface, last string) {
	t.Helper()
	newest, err := client.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	cluster.Eventually(t, cluster.SettleTimeout, "all clients see the last object", func(context.Context) error {
		for i, r := range all {
			if _, ok, err := r.get(last); !ok || err != nil {
				return errors.Join(fmt.Errorf("client %d has not", i), err)
			}
		}
		return nil
	})
	for i, r := range all {
		stale := 0
		for j := range newest.Items {
			want := &newest.Items[j]
			have, ok, err := r.get(want.GetName())
			must(t, err)
			if !ok || have.GetResourceVersion() != want.GetResourceVersion() {
				stale++
			}
		}
		if stale > 0 {
			t.Errorf("client %d has %d of %d objects at an old resourceVersion", i, stale, len(newest.Items))
		}
	}
}

// restless is a client's cache, made by client-go, whose watches end soon and which is started anew
// at times, until calm is set.
type restless struct {
	random  *rand.Rand // used by run alone
	calm    *atomic.Bool
	clients []dynamic.ResourceInterface
	store   atomic.Pointer[cache.Store]
	starts  atomic.Int64
	resumed atomic.Int64
}

func (r *restless) get(name string) (*unstructured.Unstructured, bool, error) {
	store := r.store.Load()
	if store == nil {
		return nil, false, nil
	}
	object, ok, err := (*store).GetByKey(metav1.NamespaceDefault + "/" + name)
	if !ok || err != nil {
		return nil, false, err
	}
	return object.(*unstructured.Unstructured), true, nil
}

func (r *restless) run(ctx context.Context) error {
	for ctx.Err() == nil {
		life, end := context.WithCancel(ctx)
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		r.store.Store(&store)
		r.starts.Add(1)
		watches := 2 + r.random.IntN(30)
		client := func() dynamic.ResourceInterface { return r.clients[r.random.IntN(len(r.clients))] }
		lw := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				return client().List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				w, err := client().Watch(ctx, opts)
				if err != nil {
					return nil, err
				}
				list := opts.SendInitialEvents != nil
				if !list {
					r.resumed.Add(1)
				}
				if watches--; watches == 0 && !r.calm.Load() {
					end()
				}
				return r.cut(w, list, 1+r.random.IntN(150)), nil
			},
		}
		cache.NewReflector(lw, &unstructured.Unstructured{}, store, 0).RunWithContext(life)
		end()
	}
	return nil
}

// cut ends a watch after some events, unless calm is set then. The events of an initial list, up to
// its bookmark, do not count.
func (r *restless) cut(w watch.Interface, list bool, events int) watch.Interface {
	result := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(result)
	go func() {
		defer close(result)
		defer w.Stop()
		for n := 0; n < events || r.calm.Load(); n++ {
			select {
			case event, ok := <-w.ResultChan():
				if !ok {
					return
				}
				if list {
					n, list = 0, event.Type != watch.Bookmark
				}
				select {
				case result <- event:
				case <-proxy.StopChan():
					return
				}
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy
}

// linearNames are the names of the widgets that testLinearizable writes.
var linearNames = []string{"a", "b", "c", "d"}

// linearClient makes calls about a few widgets, one after the other, through any server.
type linearClient struct {
	t       *testing.T
	history *linear.History
	random  *rand.Rand
	widgets []dynamic.ResourceInterface
	id      int
}

// run makes calls until ctx ends.
func (c *linearClient) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		in := linear.Call{
			Verb: []string{linear.Create, linear.Update, linear.Update, linear.Get, "list", linear.Delete}[c.random.IntN(6)],
			Name: linearNames[c.random.IntN(len(linearNames))],
		}
		if in.Verb == linear.Create || in.Verb == linear.Update {
			in.Value = fmt.Sprintf("%d-%d", c.id, n)
		}
		// A call is given up after ten seconds, but not when ctx ends, so that the end of the test
		// cuts off no call.
		request, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		via, began := c.widgets[c.random.IntN(len(c.widgets))], c.history.Now()
		if in.Verb == "list" {
			if answers, err := list(request, via); err == nil {
				c.history.Record(began, answers)
			}
		} else if out, happened := c.call(request, via, in); happened {
			c.history.Record(began, map[linear.Call]linear.Answer{in: out})
		}
		cancel()
	}
}

// list reads all widgets.
func list(ctx context.Context, via dynamic.ResourceInterface) (map[linear.Call]linear.Answer, error) {
	items, err := via.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for i := range items.Items {
		texts[items.Items[i].GetName()] = textOf(&items.Items[i])
	}
	return linear.Listed(linearNames, texts), nil
}

func textOf(u *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(u.Object, "spec", "text")
	return text
}

// call makes a call, and says whether it can have taken effect.
func (c *linearClient) call(ctx context.Context, via dynamic.ResourceInterface, in linear.Call) (out linear.Answer, happened bool) {
	read := func() (u *unstructured.Unstructured, err error) {
		if u, err = via.Get(ctx, in.Name, metav1.GetOptions{}); err == nil {
			out.Value = textOf(u)
		}
		return u, err
	}
	var err error
	switch in.Verb {
	case linear.Create:
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": in.Value}}}
		u.SetAPIVersion(widgetGroup + "/v2")
		u.SetKind("Widget")
		u.SetName(in.Name)
		_, err = via.Create(ctx, u, metav1.CreateOptions{})
	case linear.Update:
		var u *unstructured.Unstructured
		if u, err = read(); err != nil && !apierrors.IsNotFound(err) {
			return linear.Answer{}, false // nothing was written
		}
		if err == nil {
			u.Object["spec"] = map[string]any{"text": in.Value}
			_, err = via.Update(ctx, u, metav1.UpdateOptions{})
		}
	case linear.Delete:
		err = via.Delete(ctx, in.Name, metav1.DeleteOptions{})
	default:
		_, err = read()
	}
	switch {
	case err == nil:
		return out, true
	case in.Verb == linear.Get && apierrors.IsNotFound(err):
		return linear.Answer{}, true
	case apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		return linear.Answer{Refused: true}, true
	case in.Verb == linear.Get, apierrors.IsConflict(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), utilnet.IsConnectionRefused(err):
		return linear.Answer{}, false // nothing was read, or written
	case apierrors.IsInternalError(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		return linear.Answer{Unknown: true}, true
	}
	c.t.Errorf("%+v: %v", in, err)
	return linear.Answer{}, false
}

// testLinearizable: clients see each widget as one register while its storage version changes to and
// fro, and while servers and etcd are killed during calls. An acknowledged write is there, a refused
// one is not, and no client reads anything older than what a client has read before.
func testLinearizable(t *testing.T) {
	const clients, rounds, between = 8, 8, 60
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two")
	createWidgets(t, "v1", servers...)
	history, seed := linear.NewHistory(), rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	for id := range clients {
		client := &linearClient{t: t, history: history, random: rand.New(rand.NewPCG(seed, uint64(id))), id: id}
		for _, s := range servers {
			client.widgets = append(client.widgets, s.Dynamic().Resource(widgets.WithVersion("v2")).Namespace(metav1.NamespaceDefault))
		}
		running.Go(func() { client.run(ctx) })
	}
	progress := func() {
		t.Helper()
		want := history.Len() + between
		cluster.Eventually(t, 2*time.Minute, "clients are answered", func(context.Context) error {
			if have := history.Len(); have < want {
				return fmt.Errorf("%d to go", want-have)
			}
			return nil
		})
	}
	for round := range rounds {
		victim, other := servers[round%2], servers[1-round%2]
		storeWidgetsIn(t, other, []string{"v2", "v1"}[round%2])
		progress()
		victim.Kill()
		progress()
		if round == rounds-1 {
			c.Etcd.Kill()
			c.Etcd.Start()
			c.Etcd.WaitReady()
		}
		victim.Start()
		victim.WaitReady()
		progress()
	}
	stop()
	running.Wait()
	if err := history.Check(2 * time.Minute); err != nil {
		t.Error(err)
	}
	t.Logf("%d calls, %d of an unknown outcome", history.Len(), history.Unknown())
	if history.Unknown() == 0 {
		t.Error("no call was cut off")
	}
	c.WaitSettled()
	if found := c.Encodings(widgets); len(found) > 1 || len(found) == 1 && found[widgetEncoding("v1")] == 0 {
		t.Errorf("widgets are stored as %v", found) // there may be none left
	}
	c.Check()
}
