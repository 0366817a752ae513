package clientload

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/workers"
)

// collecting makes garbage collections happen while migrations rest. A collection takes up to half of the processors,
// for a time that depends on the size of the heap; if objects are rewritten at the same time, which all watch caches
// decode, clients wait for whole seconds.
type collecting struct {
	clock clock.PassiveClock
	// read returns the figures of the heap, and collect collects garbage.
	read    func() heap
	collect func()

	mu      sync.Mutex
	running bool
	// looked is when the heap was last read. after is until when nothing more is collected.
	looked, after time.Time
	// cycles are the collections so far, and allocated the bytes allocated when the last one ended.
	cycles, allocated uint64
}

// heap holds figures of Go's runtime: the number of collections so far and, in bytes, everything that was ever
// allocated, the size at which the next collection should end, the live part of it at the last collection, and the
// current size, with garbage that is not freed yet.
type heap struct{ cycles, allocated, goal, live, size uint64 }

func newCollecting(c clock.PassiveClock) *collecting {
	return &collecting{clock: c, read: readHeap, collect: runtime.GC}
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/goal:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 {
		if samples[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return samples[i].Value.Uint64()
	}
	return heap{value(0), value(1), value(2), value(3), value(4)}
}

const (
	// collectAt is the part of the bytes that may be allocated between two collections at which one is begun.
	// The runtime itself begins between 0.7 and 0.95 of it.
	collectAt = 0.6
	// Where less may be allocated than that, or than a tenth of the live heap, as at a memory limit,
	// the runtime decides alone.
	leastRunway = 16 << 20
	// leastApart is how long after a collection the next one is begun here at the earliest, or as long
	// as it lasted.
	leastApart = 500 * time.Millisecond
	// recently: a heap that was read within this time is known since.
	recently = time.Second
)

// under reports whether garbage is being collected, and starts a collection if one is about to start anyway.
func (c *collecting) under() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return true
	}
	now, h := c.clock.Now(), c.read()
	if h.cycles != c.cycles {
		c.cycles, c.allocated = h.cycles, h.allocated
		if now.Sub(c.looked) > recently {
			// It may have ended long ago: the heap beyond the part that was alive was allocated since.
			c.allocated -= max(h.live, h.size) - h.live
		}
	}
	c.looked = now
	runway := h.goal - min(h.live, h.goal)
	if runway < max(leastRunway, h.live/10) || now.Before(c.after) || float64(h.allocated-c.allocated) < collectAt*float64(runway) {
		return false
	}
	c.running = true
	workers.Go(context.Background(), "collect garbage", func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			ended := c.clock.Now()
			c.running, c.looked, c.after = false, ended, ended.Add(max(leastApart, ended.Sub(now)))
		}()
		c.collect()
	})
	return true
}
