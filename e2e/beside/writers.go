package beside

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/testbed/load"
)

// Writers update objects, each objects of its own, until they are stopped.
type Writers struct {
	widgets *Widgets
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// acknowledged has the last number that was written to each object and acknowledged.
	acknowledged map[string]int64
	// unsure has the objects with a later write that may be made or not.
	unsure map[string]bool
	wrote  int
	failed []error
}

// every is how often a writer writes. As fast as the servers answer, writers would take the whole machine, and
// migrations give way to them.
const every = 20 * time.Millisecond

// Write starts one writer for each server. The writers update n objects; n is a multiple of their number.
func (w *Widgets) Write(n int, servers ...*APIServer) *Writers {
	w.Server.Cluster.T.Helper()
	ctx, cancel := context.WithCancel(w.Server.Cluster.T.Context())
	writers := &Writers{widgets: w, cancel: cancel, acknowledged: map[string]int64{}, unsure: map[string]bool{}}
	for i, s := range servers {
		all := s.Dynamic().Resource(w.In("v1")).Namespace(Namespace)
		writers.running.Go(func() {
			next := time.NewTicker(every)
			defer next.Stop()
			for turn := int64(1); ctx.Err() == nil; turn++ {
				name := ObjectName((int(turn)*7*len(servers) + i) % n)
				patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, turn)
				// The writer waits also at the end for the answer to its last write, so that
				// the outcome is known.
				begun, end := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				_, err := all.Patch(begun, name, types.MergePatchType, patch, metav1.PatchOptions{})
				end()
				writers.note(s.Name, name, turn, err)
				select {
				case <-next.C:
				case <-ctx.Done():
				}
			}
		})
	}
	w.Server.Cluster.T.Cleanup(writers.end)
	return writers
}

func (w *Writers) note(server, name string, turn int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.wrote++
		w.acknowledged[name], w.unsure[name] = turn, false
	case load.EtcdLate(err):
		w.unsure[name] = true
	case !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err):
		w.failed = append(w.failed, fmt.Errorf("write %s through %s: %w", name, server, err))
	}
}

func (w *Writers) end() {
	w.cancel()
	w.running.Wait()
}

// Stop ends the writers and checks that no write failed, and that the last acknowledged write
// of each object is there, unless etcd was late for a later one. version is a version that is served.
func (w *Writers) Stop(version string) {
	t := w.widgets.Server.Cluster.T
	t.Helper()
	w.end()
	if err := errors.Join(w.failed...); err != nil {
		t.Error(err)
	}
	if w.wrote == 0 {
		t.Error("nothing was written meanwhile")
	}
	list, err := w.widgets.Server.Dynamic().Resource(w.widgets.In(version)).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]int64{}
	for _, object := range list.Items {
		there[object.GetName()], _, _ = unstructured.NestedInt64(object.Object, "spec", "n")
	}
	for name, n := range w.acknowledged {
		if there[name] < n || there[name] > n && !w.unsure[name] {
			t.Errorf("%s has %d, although %d was acknowledged last", name, there[name], n)
		}
	}
	t.Logf("%d writes were acknowledged meanwhile", w.wrote)
}
