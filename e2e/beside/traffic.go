package beside

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// writtenAnnotation is the annotation into which Traffic writes.
const writtenAnnotation = "example.com/written"

// Written are objects of one resource, which one client writes in turns.
type Written struct {
	Resource  schema.GroupVersionResource
	Namespace string
	Names     []string
}

// Traffic writes objects until it is stopped, while the test replaces servers. Each write goes to one server after the
// other, until one has acknowledged it.
type Traffic struct {
	t testing.TB
	// answer is how long a client waits for an answer, and write how long it may repeat a write: a server that is
	// shutting down answers 503, or not at all. A write that a server does not take for now it may repeat for Patience longer.
	answer, write time.Duration
	// every is the time between two writes of a client, 0 for none.
	every time.Duration

	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	servers []*cluster.APIServer
	// taken are the writes that were acknowledged, by server.
	taken    map[string]int
	attempts []*attempt
	// acknowledged are the objects as servers acknowledged them, by resource.
	acknowledged map[schema.GroupVersionResource][]Change
}

// attempt is a write through a server. Its end is zero while it is under way.
type attempt struct {
	server     *cluster.APIServer
	begin, end time.Time
}

// StartTraffic starts a client for each of all; answer and write are as in Traffic.
func StartTraffic(t testing.TB, answer, write time.Duration, all []Written, servers ...*cluster.APIServer) *Traffic {
	w := &Traffic{t: t, answer: answer, write: write, servers: servers}
	w.start(all)
	return w
}

// Write starts a client for each server, which together write n of the widgets. No write may fail, except that a server
// refuses it for now or does not know its outcome. Clients pause between writes: otherwise they would take the whole
// machine, and migrations give way to them.
func (w *Widgets) Write(n int, servers ...*APIServer) *Traffic {
	traffic := &Traffic{t: w.Server.Cluster.T, answer: time.Minute, every: 20 * time.Millisecond}
	all := make([]Written, len(servers))
	for i := range n {
		o := &all[i%len(all)]
		o.Resource, o.Namespace, o.Names = w.In("v1"), Namespace, append(o.Names, ObjectName(i))
	}
	for _, s := range servers {
		traffic.servers = append(traffic.servers, s.APIServer)
	}
	traffic.start(all)
	return traffic
}

func (w *Traffic) start(all []Written) {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.stop, w.taken, w.acknowledged = cancel, map[string]int{}, map[schema.GroupVersionResource][]Change{}
	for _, o := range all {
		w.running.Go(func() {
			last := map[string]int{}
			for turn := 0; ctx.Err() == nil; turn++ {
				if name := o.Names[turn%len(o.Names)]; w.done(o, name, turn) {
					last[name] = turn
				}
				if w.every > 0 {
					_ = load.Pause(ctx, w.every)
				}
			}
			w.check(o, last)
		})
	}
	w.t.Cleanup(func() { w.Stop() })
}

// Stop ends the writers once their writes under way have ended, checks that what was acknowledged last is stored, and
// returns how many writes were acknowledged.
func (w *Traffic) Stop() int {
	w.stop()
	w.running.Wait()
	return w.Taken()
}

// Through sets the servers to which clients write from now on.
func (w *Traffic) Through(servers ...*cluster.APIServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = servers
}

func (w *Traffic) server(i int) *cluster.APIServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[i%len(w.servers)]
}

// Taken returns how many writes were acknowledged.
func (w *Traffic) Taken() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, taken := range w.taken {
		n += taken
	}
	return n
}

// Await waits until each of the servers has acknowledged n more writes.
func (w *Traffic) Await(n int, servers ...*cluster.APIServer) {
	w.t.Helper()
	count := func(s *cluster.APIServer) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.taken[s.Name]
	}
	want := map[*cluster.APIServer]int{}
	for _, s := range servers {
		want[s] = count(s) + n
	}
	Eventually(w.t, Patience, "servers take writes", func(context.Context) error {
		for s, want := range want {
			if now := count(s); now < want {
				return fmt.Errorf("%s has taken %d of %d", s.Name, now, want)
			}
		}
		return nil
	})
}

// UnderWay counts the tries through a server that were under way from one time to another.
func (w *Traffic) UnderWay(s *cluster.APIServer, from, to time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.attempts {
		if a.server == s && a.begin.Before(from) && (a.end.IsZero() || a.end.After(to)) {
			n++
		}
	}
	return n
}

// done sends a write until a server has acknowledged it. The outcome of an attempt without an answer does not matter,
// since the next one writes the same.
func (w *Traffic) done(o Written, name string, turn int) bool {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, writtenAnnotation, turn)
	deadline := time.Now().Add(w.write)
	for try := turn; ; try++ {
		s := w.server(try)
		err := w.try(s, o, name, patch)
		switch {
		case err == nil:
			w.mu.Lock()
			w.taken[s.Name]++
			w.mu.Unlock()
			return true
		case w.t.Context().Err() != nil:
			return false
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || time.Now().After(deadline) && !retriable(err) || time.Now().After(deadline.Add(Patience)):
			w.t.Errorf("write %s: %v", name, err)
			return false
		}
	}
}

// retriable says whether an error is no fault of a server that serves: it refuses a write for now, another client was
// faster, or etcd was late.
func retriable(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsConflict(err) || load.EtcdLate(err)
}

func (w *Traffic) try(s *cluster.APIServer, o Written, name string, patch []byte) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), w.answer)
	defer cancel()
	config := rest.CopyConfig(s.Config())
	config.Timeout = 0 // ctx limits the request instead
	this := &attempt{server: s, begin: time.Now()}
	w.mu.Lock()
	w.attempts = append(w.attempts, this)
	w.mu.Unlock()
	object, err := dynamic.NewForConfigOrDie(config).Resource(o.Resource).Namespace(o.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if this.end = time.Now(); err != nil {
		return err
	}
	seen, revision, err := Seen(object)
	if err == nil {
		w.acknowledged[o.Resource] = append(w.acknowledged[o.Resource], Change{Name: seen, Revision: revision})
	}
	return err
}

// Acknowledged returns the writes of a resource that were acknowledged so far.
func (w *Traffic) Acknowledged(resource schema.GroupVersionResource) []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acknowledged[resource])
}

// check checks that the writes which were acknowledged last are stored.
func (w *Traffic) check(o Written, last map[string]int) {
	if w.t.Context().Err() != nil {
		return
	}
	list, err := w.server(0).Dynamic().Resource(o.Resource).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Errorf("list %s: %v", o.Resource.Resource, err)
		return
	}
	there := map[string]string{}
	for i := range list.Items {
		there[list.Items[i].GetName()] = list.Items[i].GetAnnotations()[writtenAnnotation]
	}
	for name, turn := range last {
		if there[name] != fmt.Sprint(turn) {
			w.t.Errorf("%s %s has %q, although %d was acknowledged last", o.Resource.Resource, name, there[name], turn)
		}
	}
}
