package garbage

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/fstest"
	"time"
)

const room = 256 << 20

func TestHeapRoom(t *testing.T) {
	const much = "MemTotal: 99999999 kB\nMemAvailable:   8388608 kB\n"
	for name, tc := range map[string]struct {
		limit, memory string
		want          uint64
	}{
		"a large host":             {memory: much, want: maxHeapRoom},
		"no limit":                 {limit: "max\n", memory: much, want: maxHeapRoom},
		"a container of 512 MiB":   {limit: "536870912\n", memory: much, want: 128 << 20},
		"little memory is left":    {limit: "max\n", memory: "MemAvailable: 262144 kB\n", want: 64 << 20},
		"nothing tells":            {want: blindHeapRoom},
		"nothing tells that is so": {limit: "much", memory: "MemAvailable: all\n", want: blindHeapRoom},
	} {
		root := fstest.MapFS{}
		if tc.limit != "" {
			root["sys/fs/cgroup/memory.max"] = &fstest.MapFile{Data: []byte(tc.limit)}
		}
		if tc.memory != "" {
			root["proc/meminfo"] = &fstest.MapFile{Data: []byte(tc.memory)}
		}
		if got := heapRoom(root); got != tc.want {
			t.Errorf("%s: %d MiB, want %d MiB", name, got>>20, tc.want>>20)
		}
	}
}

func TestSparingPercent(t *testing.T) {
	for _, tc := range []struct {
		live  uint64
		usual int
		want  int
	}{
		{live: 0, usual: 100, want: 100}, // nothing was collected yet
		{live: room / 4, usual: 100, want: 400},
		{live: room * 2 / 5, usual: 100, want: 250},
		{live: room, usual: 100, want: 100},
		{live: 10 * room, usual: 100, want: 100}, // a large heap grows by more anyway
		{live: 1, usual: 100, want: 1000},
		{live: room, usual: 300, want: 300},
		{live: room / 4, usual: -1, want: -1}, // nothing is collected
	} {
		if got := sparingPercent(tc.live, room, tc.usual); got != tc.want {
			t.Errorf("%d bytes at %d: %d, want %d", tc.live, tc.usual, got, tc.want)
		}
	}
}

// A small heap is as large as it would be if only the least that lived lately did. A large one
// may grow by more than usual, if there is room.
func TestSteadyPercent(t *testing.T) {
	const mib, roomy = 1 << 20, 2000 << 20
	for _, tc := range []struct {
		live, others, least uint64
		usual, want         int
		room                uint64
	}{
		{live: 0, room: roomy, usual: 100, want: 100}, // nothing was collected yet
		{live: 48 * mib, least: 48 * mib, room: roomy, usual: 100, want: 300},
		{live: 64 * mib, least: 48 * mib, room: roomy, usual: 100, want: 200},
		{live: 64 * mib, others: 16 * mib, least: 48 * mib, room: roomy, usual: 100, want: 160},
		{live: 40 * mib, least: 40 * mib, room: roomy, usual: 10, want: 360},
		{live: 1, least: 1, room: roomy, usual: 100, want: 1000},
		{live: 48 * mib, least: 48 * mib, room: 96 * mib, usual: 100, want: 200},   // no more than there is
		{live: 48 * mib, least: 40 * mib, room: 1 * mib, usual: 100, want: 116},    // but twice what is under way
		{live: 64 * mib, least: 40 * mib, room: 1 * mib, usual: 150, want: 75},     // no less than half
		{live: 100 * mib, least: 48 * mib, room: 100 * mib, usual: 100, want: 150}, // no longer a small one
		{live: 96 * mib, least: 64 * mib, usual: 100, want: 100},
		{live: 100 * mib, least: 100 * mib, room: 100 * mib, usual: 100, want: 150},
		{live: 100 * mib, least: 100 * mib, room: roomy, usual: 100, want: 200},   // by as much as lives
		{live: 1000 * mib, least: 900 * mib, room: roomy, usual: 150, want: 200},  // by 512 MiB
		{live: 8000 * mib, least: 8000 * mib, room: roomy, usual: 100, want: 100}, // as good as nothing
		{live: 100 * mib, least: 100 * mib, room: 100 * mib, usual: -1, want: -1},
		{live: 48 * mib, least: 48 * mib, room: roomy, usual: -1, want: -1}, // nothing is collected
	} {
		h := heap{live: tc.live, scanned: tc.live + tc.others}
		if got := steadyPercent(h, tc.least, tc.room, tc.usual); got != tc.want {
			t.Errorf("%d MiB live, %d MiB at the least, at %d: %d, want %d", tc.live/mib, tc.least/mib, tc.usual, got, tc.want)
		}
	}
}

// Below its limit a heap has room for what is under way, however little memory there is.
func TestSteadyLimit(t *testing.T) {
	const mib = 1 << 20
	for room, want := range map[uint64]int64{1 * mib: 48 + 64 + 20 + 12, 96 * mib: 48 + 96 + 20 + 12, 500 * mib: 48 + 144 + 20 + 12} {
		if got := steadyLimit(heap{live: 80 * mib, others: 20 * mib}, 40*mib, room, 100) / mib; got != want {
			t.Errorf("with room for %d MiB: %d MiB, want %d", room/mib, got, want)
		}
	}
}

// madeUp is a heap that the test says.
type madeUp struct {
	heap
	sets    []int
	limits  []int64 // in MiB
	collect func()  // nil when nobody looks
	later   []func()
}

// passed is called when work has ended some time ago.
func (m *madeUp) passed() {
	for _, f := range m.later {
		f()
	}
	m.later = nil
}

func (m *madeUp) collector() *Collector {
	return &Collector{
		read:  func() heap { return m.heap },
		set:   func(p int) { m.percent, m.sets = p, append(m.sets, p) },
		limit: func(l int64) { m.heap.limit, m.limits = l, append(m.limits, l>>20) },
		each:  func(f func()) func() { m.collect = f; return func() { m.collect = nil } },
		later: func(f func()) { m.later = append(m.later, f) },
		room:  room,
	}
}

// The percentage is raised with the first work, and as it was some time after the last.
func TestCollectorSpares(t *testing.T) {
	m := madeUp{heap: heap{live: room / 4, scanned: room / 4, percent: 150, limit: noLimit}}
	c := m.collector()
	one, two := c.Spare(), c.Spare()
	one()
	one()
	if !slices.Equal(m.sets, []int{400}) {
		t.Errorf("set %v while one still runs", m.sets)
	}
	two()
	m.collect()
	three := c.Spare()
	m.passed()
	three()
	if !slices.Equal(m.sets, []int{400}) || m.collect == nil {
		t.Errorf("set %v when the last has just ended, is called after collections: %t", m.sets, m.collect != nil)
	}
	m.passed()
	if !slices.Equal(m.sets, []int{400, 150}) || m.collect != nil {
		t.Errorf("set %v some time after, is called after collections: %t", m.sets, m.collect != nil)
	}
	c.Spare()()
	m.passed()
	if !slices.Equal(m.sets, []int{400, 150, 400, 150}) || m.collect != nil {
		t.Errorf("set %v when something runs again, is called after collections: %t", m.sets, m.collect != nil)
	}
}

// Each collection is followed by a percentage for what it found, as long as there is work.
// What holds the heap's size stays until one has found what lives without.
func TestCollectorHolds(t *testing.T) {
	m := madeUp{heap: heap{percent: 100, others: 20 << 20, limit: noLimit}}
	c := m.collector()
	found := func(mib uint64) {
		m.live, m.scanned = mib<<20, mib<<20
		if m.collect != nil {
			m.collect()
		}
	}
	found(32)
	done := c.Hold()
	found(48)
	found(48)
	spared := c.Spare()
	found(16)
	spared()
	found(48)
	done()
	again := c.Hold()
	m.passed()
	again()
	found(64) // with the work
	m.passed()
	third := c.Hold()
	third()
	found(40)
	if want := []int{450, 266, 525, 1000, 900, 233, 175}; !slices.Equal(m.sets, want) || m.collect == nil {
		t.Errorf("set %v, want %v; is called after collections: %t", m.sets, want, m.collect != nil)
	}
	m.passed()
	found(24)
	if want := []int{450, 266, 525, 1000, 900, 233, 175, 100}; !slices.Equal(m.sets, want) || m.collect != nil {
		t.Errorf("set %v, want %v; is called after collections: %t", m.sets, want, m.collect != nil)
	}
	// What lives and what does not, 144 MiB, 20 and 12; none while there is room to spare.
	if want := []int64{208, noLimit >> 20, 192, 208, noLimit >> 20}; !slices.Equal(m.limits, want) {
		t.Errorf("limits %v, want %v", m.limits, want)
	}
}

// A limit that somebody else has set stays.
func TestCollectorKeepsLimit(t *testing.T) {
	m := madeUp{heap: heap{live: 32 << 20, scanned: 32 << 20, percent: 100, limit: 500 << 20}}
	m.collector().Hold()()
	m.passed()
	if len(m.limits) > 0 || !slices.Equal(m.sets, []int{450, 100}) {
		t.Errorf("limits %v, set %v", m.limits, m.sets)
	}
}

func TestEachCollection(t *testing.T) {
	collections := make(chan struct{}, 10)
	stop := eachCollection(func() { collections <- struct{}{} })
	defer stop()
	for range 3 {
		runtime.GC()
		select {
		case <-collections:
		case <-time.After(30 * time.Second):
			t.Fatal("a collection was not noticed")
		}
	}
}

// The heap's own figures are understood, and an operator's GOGC is not touched.
func TestCollectorReads(t *testing.T) {
	runtime.GC()
	before := debug.SetGCPercent(130)
	defer debug.SetGCPercent(before)
	h := readHeap()
	if h.percent != 130 || h.live == 0 || h.live > 1<<40 || h.scanned <= h.live {
		t.Errorf("read %+v", h)
	}
	debug.SetGCPercent(-1)
	if off := readHeap(); off.percent != -1 {
		t.Errorf("off is %d", off.percent)
	}
	t.Setenv("GOGC", "130")
	New().Spare()()
	if c := New(); c != nil {
		t.Error("GOGC is overruled")
	}
}
