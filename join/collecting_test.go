package join

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// heap is a runtime's, as its metrics tell of it.
type heap struct {
	cycles, allocs, goal, live, objects uint64
}

// of returns a metric's value.
func (h heap) of(name string) uint64 {
	return map[string]uint64{
		"/gc/cycles/total:gc-cycles": h.cycles, "/gc/heap/allocs:bytes": h.allocs, "/gc/heap/goal:bytes": h.goal,
		"/gc/heap/live:bytes": h.live, "/memory/classes/heap/objects:bytes": h.objects,
	}[name]
}

// TestCollecting: a collection begins when most of what may be allocated until the next one is, and
// migrations are told of it until it ends.
func TestCollecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now heap
		collected := make(chan struct{})
		c := &collecting{read: func(name string) uint64 { return now.of(name) }, collect: func() { <-collected }}
		for _, step := range []struct {
			what string
			heap heap
			want bool
		}{
			{"first seen long after a collection, with little allocated", heap{cycles: 3, allocs: 5000, goal: 400, live: 200, objects: 250}, false},
			{"half of what may be", heap{cycles: 3, allocs: 5050, goal: 400, live: 200, objects: 300}, false},
			{"a collection of the runtime's own", heap{cycles: 4, allocs: 5200, goal: 600, live: 300, objects: 310}, false},
			{"most of what may be", heap{cycles: 4, allocs: 5380, goal: 600, live: 300, objects: 490}, true},
			{"it goes on", heap{cycles: 4, allocs: 5390, goal: 600, live: 300, objects: 500}, true},
		} {
			now = step.heap
			if got := c.under(); got != step.want {
				t.Errorf("%s: collecting %v", step.what, got)
			}
		}
		collected <- struct{}{}
		synctest.Wait()
		now = heap{cycles: 5, allocs: 5400, goal: 640, live: 320, objects: 330}
		if c.under() {
			t.Error("a collection has ended, and another has begun")
		}
		now = heap{cycles: 6, allocs: 9000, goal: 640, live: 320, objects: 560}
		if !c.under() {
			t.Error("nothing is collected where it is not known when the last collection ended, and much has been allocated since")
		}
		close(collected)
		synctest.Wait()
	})
}

// TestCollectingRuntime reads what the runtime tells.
func TestCollectingRuntime(t *testing.T) {
	c := newCollecting()
	for _, name := range heapMetrics {
		if c.read(name) == 0 {
			t.Errorf("the runtime tells nothing of %s", name)
		}
	}
}

// TestCollectingBesideClients: garbage is collected for the clients, so not where there are none.
func TestCollectingBesideClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, collections := newClientLoad(clock.RealClock{}), 0
		full := heap{cycles: 1, allocs: 1000, goal: 400, live: 200, objects: 390}
		l.garbage = &collecting{read: full.of, collect: func() { collections++ }}
		look, stop := l.Watch()
		defer stop()
		if look().Collecting {
			t.Error("garbage is collected beside no clients")
		}
		for range busyRequests {
			end := l.begin("write")
			time.Sleep(loadWindow / 10)
			end()
		}
		if !look().Collecting {
			t.Error("garbage is not collected beside clients")
		}
		synctest.Wait()
		if collections != 1 {
			t.Errorf("garbage was collected %d times", collections)
		}
	})
}
