package interop

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/e2e/beside"
)

// written is the annotation into which the writers write.
const written = "example.com/written"

// objectsOf are objects of one resource.
type objectsOf struct {
	resource  schema.GroupVersionResource
	namespace string
	names     []string
}

// traffic writes objects until it is stopped, each write through one server after the other
// until one has taken it, while servers are exchanged.
type traffic struct {
	t       testing.TB
	running sync.WaitGroup

	mu      sync.Mutex
	servers []*beside.APIServer
	// taken are the writes that were acknowledged, by server.
	taken map[string]int
}

// startTraffic has one writer for each resource.
func startTraffic(t testing.TB, all []objectsOf, servers ...*beside.APIServer) (w *traffic, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	w = &traffic{t: t, servers: servers, taken: map[string]int{}}
	for _, o := range all {
		w.running.Go(func() {
			last := map[string]int{}
			for turn := 0; ctx.Err() == nil; turn++ {
				name := o.names[turn%len(o.names)]
				w.write(o, name, turn)
				last[name] = turn
			}
			w.check(o, last)
		})
	}
	stop = func() { cancel(); w.running.Wait() }
	t.Cleanup(stop)
	return w, stop
}

// through names the servers that are written through from now on.
func (w *traffic) through(servers ...*beside.APIServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = servers
}

func (w *traffic) server(i int) *beside.APIServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[i%len(w.servers)]
}

// await waits until each of the servers has taken so many writes more.
func (w *traffic) await(n int, servers ...*beside.APIServer) {
	w.t.Helper()
	count := func(s *beside.APIServer) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.taken[s.Name]
	}
	want := map[*beside.APIServer]int{}
	for _, s := range servers {
		want[s] = count(s) + n
	}
	beside.Eventually(w.t, beside.Patience, "servers take writes", func(context.Context) error {
		for s, want := range want {
			if now := count(s); now < want {
				return fmt.Errorf("%s has taken %d of %d", s.Name, now, want)
			}
		}
		return nil
	})
}

// write writes until a server has taken it: the outcome of a try that was not answered does not
// matter, since the next one writes the same.
func (w *traffic) write(o objectsOf, name string, turn int) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, written, turn)
	deadline := time.Now().Add(beside.Patience)
	for try := turn; ; try++ {
		s := w.server(try)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := s.Dynamic().Resource(o.resource).Namespace(o.namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		cancel()
		switch {
		case err == nil:
			w.mu.Lock()
			w.taken[s.Name]++
			w.mu.Unlock()
			return
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || time.Now().After(deadline):
			w.t.Errorf("write %s: %v", name, err)
			return
		}
	}
}

// check reads what was written last.
func (w *traffic) check(o objectsOf, last map[string]int) {
	list, err := w.server(0).Dynamic().Resource(o.resource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Errorf("list %s: %v", o.resource.Resource, err)
		return
	}
	there := map[string]string{}
	for i := range list.Items {
		there[list.Items[i].GetName()] = list.Items[i].GetAnnotations()[written]
	}
	for name, turn := range last {
		if there[name] != fmt.Sprint(turn) {
			w.t.Errorf("%s %s has %q, although %d was acknowledged last", o.resource.Resource, name, there[name], turn)
		}
	}
}
