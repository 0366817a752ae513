package server

import (
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxHeapRoom is how far the heap may at least grow between two collections while something
	// runs that makes much garbage, in bytes. A collection marks all that lives, watch caches
	// and schemas, and on a small heap that is done for very little garbage each time.
	maxHeapRoom = 2 << 30
	// heapRoomShare is the part of the memory that is left which it may take, at most, and
	// blindHeapRoom what it is where nothing tells how much that is.
	heapRoomShare = 4
	blindHeapRoom = 128 << 20
	// heapRoomInterval is how often the percentage is computed anew: what lives grows.
	heapRoomInterval = time.Second
)

// collector makes the garbage collector of this process run less often while there is work
// that asks for it. A heap that is large is left as it is, and so is whatever the environment
// says by GOGC; the limit of GOMEMLIMIT holds in any case.
type collector struct {
	// read returns what lives, in bytes, and the percentage that is set; set changes it.
	read func() (live uint64, percent int)
	set  func(percent int)
	room uint64

	mu      sync.Mutex
	running int
	usual   int // the percentage when nothing runs
	stop    chan struct{}
}

func newCollector() *collector {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &collector{read: readHeap, set: func(percent int) { debug.SetGCPercent(percent) }, room: heapRoom(os.DirFS("/"))}
}

// spare is called before the work, and what it returns after it.
func (c *collector) spare() (done func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running++; c.running == 1 {
		_, c.usual = c.read()
		c.adjust()
		c.stop = make(chan struct{})
		go c.follow(c.stop)
	}
	return sync.OnceFunc(c.leave)
}

func (c *collector) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 {
		close(c.stop)
		c.set(c.usual)
	}
}

func (c *collector) follow(stop <-chan struct{}) {
	ticker := time.NewTicker(heapRoomInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			c.mu.Lock()
			if c.stop == stop && c.running > 0 {
				c.adjust()
			}
			c.mu.Unlock()
		}
	}
}

// adjust is called with mu.
func (c *collector) adjust() {
	live, percent := c.read()
	if wanted := sparingPercent(live, c.room, c.usual); wanted != percent {
		c.set(wanted)
	}
}

// sparingPercent is by how much of what lives the heap may grow, so that it is at least
// room and no less than usual, which is negative where nothing is collected.
func sparingPercent(live, room uint64, usual int) int {
	if usual < 0 || live == 0 {
		return usual
	}
	// In steps, since every change stops the world for a moment.
	const step = 25
	return max(usual, int(min(room*100/live, 1000))/step*step)
}

// heapRoom reads from the root directory how much memory there is for the heap to grow.
func heapRoom(root fs.FS) uint64 {
	known, room := false, uint64(maxHeapRoom)
	bound := func(bytes uint64, err error) {
		if err == nil {
			known, room = true, min(room, bytes/heapRoomShare)
		}
	}
	// "max" where a container has no limit.
	if limit, err := fs.ReadFile(root, "sys/fs/cgroup/memory.max"); err == nil {
		bound(strconv.ParseUint(strings.TrimSpace(string(limit)), 10, 64))
	}
	if memory, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		for line := range strings.Lines(string(memory)) {
			if available, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
				kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(available), " kB"), 10, 54)
				bound(kib<<10, err)
			}
		}
	}
	if !known {
		return blindHeapRoom
	}
	return room
}

func readHeap() (live uint64, percent int) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/gogc:percent"}}
	metrics.Read(samples)
	percent = -1
	if p := samples[1].Value.Uint64(); p <= math.MaxInt32 {
		percent = int(p)
	}
	return samples[0].Value.Uint64(), percent
}
