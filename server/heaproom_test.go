package server

import (
	"runtime/debug"
	"slices"
	"testing"
	"testing/fstest"
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
		{live: 10 * room, usual: 100, want: 100}, // a large heap is left as it is
		{live: 1, usual: 100, want: 1000},
		{live: room, usual: 300, want: 300},
		{live: room / 4, usual: -1, want: -1}, // nothing is collected
	} {
		if got := sparingPercent(tc.live, room, tc.usual); got != tc.want {
			t.Errorf("%d bytes at %d: %d, want %d", tc.live, tc.usual, got, tc.want)
		}
	}
}

// The percentage is raised with the first work, and as it was after the last.
func TestCollectorSpares(t *testing.T) {
	percent, sets := 150, []int{}
	c := &collector{
		read: func() (uint64, int) { return room / 4, percent },
		set:  func(p int) { percent, sets = p, append(sets, p) },
		room: room,
	}
	one, two := c.spare(), c.spare()
	one()
	one()
	if !slices.Equal(sets, []int{400}) {
		t.Errorf("set %v while one still runs", sets)
	}
	two()
	if !slices.Equal(sets, []int{400, 150}) || c.running != 0 {
		t.Errorf("set %v, %d run", sets, c.running)
	}
}

// The heap's own figures are understood, and an operator's GOGC is not touched.
func TestCollectorReads(t *testing.T) {
	before := debug.SetGCPercent(130)
	defer debug.SetGCPercent(before)
	if live, percent := readHeap(); percent != 130 || live > 1<<40 {
		t.Errorf("%d bytes live at %d", live, percent)
	}
	debug.SetGCPercent(-1)
	if _, percent := readHeap(); percent != -1 {
		t.Errorf("off is %d", percent)
	}
	t.Setenv("GOGC", "130")
	newCollector().spare()()
	if c := newCollector(); c != nil {
		t.Error("GOGC is overruled")
	}
}
