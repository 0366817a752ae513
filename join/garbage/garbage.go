// Package garbage has the garbage collector of Go run less often, or hold the heap at one
// size, while migrations run.
package garbage

import (
	"context"
	"io/fs"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/concord-dev/concord/workers"
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
	// A heap's size is held if less than heldBelow lives in it. It may grow by steadyRoom
	// between two collections then, if there is so much room: with less it is more by chance
	// how close it comes to its size. underWayAtATime is what a rewrite may have under way when
	// a collection runs: values, read, decoded and encoded, and messages.
	heldBelow       = 64 << 20
	steadyRoom      = 144 << 20
	underWayAtATime = 32 << 20
	// unusedRoom is what a held heap may have of memory that is too scattered to be used.
	unusedRoom = 12 << 20
	// moreRoom is how much more than usual a heap that is not held may grow between two
	// collections while a rewrite runs, in bytes, if that is at most half of the room that there
	// is, and morePercent in percent of what lives. What a rewrite reads and writes is garbage
	// at once; each collection marks all that the watch caches hold, which takes half a second
	// for 700 MiB, in which clients wait longer.
	moreRoom    = 512 << 20
	morePercent = 100
	noLimit     = math.MaxInt64
	// endsWithin is the time in which work says that it is done.
	endsWithin = 200 * time.Millisecond
)

// heap is what the last collection found, in bytes: what lives of the heap, and with it all
// that the percentage, by which the heap may grow until the next one, is taken of.
type heap struct {
	live, scanned uint64
	percent       int
	// others is what the process has besides the heap, in bytes.
	others uint64
	// limit is that of all memory, in bytes.
	limit int64
}

// Collector sets the percentage and the limit for the migrations that run. Whatever the environment says
// by GOGC is left as it is; the limit of GOMEMLIMIT holds in any case.
type Collector struct {
	read  func() heap
	set   func(percent int)
	limit func(bytes int64)
	// each calls a function after every collection, until stop is called.
	each func(f func()) (stop func())
	// later calls a function some time after work has ended.
	later func(f func())
	room  uint64

	mu              sync.Mutex
	sparing, steady int
	usual           int    // the percentage when nothing runs
	limited         bool   // by the environment
	stop            func() // nil while the percentage is the usual one and nothing runs
	ended           bool   // some time ago, but the heap's size is held until the next collection
	// least is the least that lived after a collection since something ran first.
	least uint64
}

// New returns the Collector of this process; nil, which does nothing, where GOGC is set.
func New() *Collector {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &Collector{
		read: readHeap, set: func(percent int) { debug.SetGCPercent(percent) }, limit: func(bytes int64) { debug.SetMemoryLimit(bytes) },
		each: eachCollection, later: func(f func()) {
			time.AfterFunc(endsWithin, func() {
				_ = workers.Do(context.Background(), "garbage", func() error { f(); return nil })
			})
		}, room: heapRoom(os.DirFS("/")),
	}
}

// Spare has garbage collected less often, for work that makes much of it.
func (c *Collector) Spare() (done func()) {
	return c.during(func(c *Collector) *int { return &c.sparing })
}

// Hold keeps the heap's size, at which garbage is collected, where it is. Work has more or
// less under way when a collection happens to run, and the heap would grow by as much again.
func (c *Collector) Hold() (done func()) {
	return c.during(func(c *Collector) *int { return &c.steady })
}

// during counts work, and returns what is to be called after it.
func (c *Collector) during(count func(*Collector) *int) (done func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == nil {
		h := c.read()
		c.usual, c.limited = h.percent, h.limit != noLimit
		c.stop = c.each(c.collected)
	}
	c.ended = false
	*count(c)++
	c.adjust()
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		*count(c)--
		if c.sparing+c.steady > 0 {
			c.adjust()
		} else {
			c.later(c.end)
		}
	})
}

// end brings back what is usual, if still nothing runs. A heap that has grown beyond that is
// collected then, which is not to be when all that is left of work is to say that it is done.
// One whose size is held keeps it until the next collection: the last one may have found what
// was under way, and by the usual percentage the heap would grow by that once more.
func (c *Collector) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sparing+c.steady > 0 || c.stop == nil {
		return
	}
	if !c.limited && c.read().limit != noLimit {
		c.ended = true
		return
	}
	c.rest()
}

func (c *Collector) collected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sparing+c.steady > 0:
		c.adjust()
	case c.ended:
		c.rest()
	}
}

// rest is called with mu.
func (c *Collector) rest() {
	c.stop()
	c.stop, c.ended = nil, false
	c.apply(c.read(), c.usual, noLimit)
}

// adjust is called with mu.
func (c *Collector) adjust() {
	h := c.read()
	if c.least == 0 || h.live < c.least {
		c.least = h.live
	}
	wanted, limit := c.usual, int64(noLimit)
	if c.steady > 0 {
		wanted = steadyPercent(h, c.least, c.room, c.usual)
	}
	if c.sparing > 0 {
		wanted = max(wanted, sparingPercent(h.live, c.room, c.usual))
	} else if c.steady > 0 {
		limit = steadyLimit(h, c.least, c.room, c.usual)
	}
	c.apply(h, wanted, limit)
}

func (c *Collector) apply(h heap, percent int, limit int64) {
	if percent != h.percent {
		c.set(percent)
	}
	if limit != h.limit && !c.limited {
		c.limit(limit)
	}
}

// sparingPercent is by how much of what lives the heap may grow, so that it is at least
// room and no less than usual, which is negative where nothing is collected.
func sparingPercent(live, room uint64, usual int) int {
	if usual < 0 || live == 0 {
		return usual
	}
	return max(usual, inSteps(room*100/live))
}

// inSteps rounds a percentage down, since every change of it stops the world for a moment.
func inSteps(percent uint64) int {
	const step = 25
	return int(min(percent, 1000)) / step * step
}

// steadySize is how large the heap may be: as large as it would be if no more than least
// lived. What lives beyond that and more than a rewrite has under way lives for some other
// reason, and is not counted against it. ok is false for a large heap, which is left to grow:
// what a rewrite has under way makes little difference to it.
func steadySize(h heap, least, room uint64, usual int) (size uint64, ok bool) {
	least = max(least, h.live-min(h.live, underWayAtATime))
	return least + min(steadyRoom, max(room, 2*underWayAtATime)), usual >= 0 && h.live > 0 && least < heldBelow
}

// steadyPercent is by how much the heap may grow to have its size, and by how much one that is
// not held may if there is so much room.
func steadyPercent(h heap, least, room uint64, usual int) int {
	if usual < 0 || h.live == 0 {
		return usual
	}
	size, ok := steadySize(h, least, room, usual)
	if !ok {
		return usual + min(morePercent, inSteps(min(room/2, moreRoom)*100/h.live))
	}
	percent := usual / 2
	if size > h.live {
		percent = max(percent, int(min((size-h.live)*100/h.scanned, 1000)))
	}
	return percent
}

// steadyLimit is the limit of all memory for a heap of its size. Without one it grows the
// more the longer a rewrite takes: now and then more is under way, and what is free is
// scattered. After every collection there is some room below it.
func steadyLimit(h heap, least, room uint64, usual int) int64 {
	size, ok := steadySize(h, least, room, usual)
	if !ok {
		return noLimit
	}
	// In steps, since every change stops the world for a moment.
	const step = 1 << 20
	return int64((size + h.others + unusedRoom) / step * step)
}

// eachCollection calls f after every collection of garbage until stop is called, and perhaps
// once more.
func eachCollection(f func()) (stop func()) {
	var stopped atomic.Bool
	var wait func()
	wait = func() {
		// A collection finds that nothing refers to it. Small objects without a pointer may
		// share a block with others and outlive it.
		mark := &struct{ self *byte }{self: new(byte)}
		runtime.AddCleanup(mark, func(struct{}) {
			if !stopped.Load() {
				wait()
				f()
			}
		}, struct{}{})
	}
	wait()
	return func() { stopped.Store(true) }
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

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	h := heap{live: value(0), scanned: value(0) + value(1) + value(2), percent: -1, limit: int64(min(value(4), noLimit))}
	h.others = value(5) - min(value(5), value(6)+value(7)+value(8)+value(9))
	if p := value(3); p <= math.MaxInt32 {
		h.percent = int(p)
	}
	return h
}
