package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/linear"
)

// linearNames are those of the widgets that testLinearizable writes.
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
		// The client gives up before the story does, so that no call of it is cut off by the end.
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

// call makes a call, and says whether it can have happened.
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

// Clients see each widget as one register while its storage version flips, and servers and etcd
// are killed under their calls: a write that was answered is there, one that was refused is not, and
// nobody reads anything older than what somebody has read before.
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
