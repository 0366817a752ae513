package join

import (
	"runtime"
	"runtime/metrics"
	"sync"
)

// collecting has garbage collected while migrations rest. A collection takes up to half of the
// processor for as long as the heap is large; with objects being rewritten beside it, all of which
// watch caches decode, clients wait for whole seconds.
type collecting struct {
	// read returns one of heapMetrics, and collect collects garbage.
	read    func(name string) uint64
	collect func()

	mu      sync.Mutex
	running bool
	// cycles are the collections so far, and allocated is what had been when the last one ended.
	cycles, allocated uint64
}

// heapMetrics are the runtime's metrics that are read: how many collections there were, and in
// bytes what was ever allocated, how large the heap may become, what of it the last collection
// found alive, and how large it is.
var heapMetrics = []string{
	"/gc/cycles/total:gc-cycles", "/gc/heap/allocs:bytes", "/gc/heap/goal:bytes", "/gc/heap/live:bytes", "/memory/classes/heap/objects:bytes",
}

func newCollecting() *collecting {
	return &collecting{collect: runtime.GC, read: func(name string) uint64 {
		sample := []metrics.Sample{{Name: name}}
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return sample[0].Value.Uint64()
	}}
}

// collectAt is the part of what may be allocated between two collections at which one is begun.
// The runtime itself begins between 0.7 and 0.95 of it.
const collectAt = 0.6

// under says that garbage is being collected, and begins to collect it if that is about to happen
// anyway.
func (c *collecting) under() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return true
	}
	allocated, goal, live := c.read("/gc/heap/allocs:bytes"), c.read("/gc/heap/goal:bytes"), c.read("/gc/heap/live:bytes")
	if cycles := c.read("/gc/cycles/total:gc-cycles"); cycles != c.cycles {
		// It may have ended long ago: what there is besides what was alive was allocated since.
		c.cycles, c.allocated = cycles, allocated-(max(live, c.read("/memory/classes/heap/objects:bytes"))-live)
	}
	if goal < live || float64(allocated-c.allocated) < collectAt*float64(goal-live) {
		return false
	}
	c.running = true
	go func() {
		c.collect()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running = false
	}()
	return true
}
