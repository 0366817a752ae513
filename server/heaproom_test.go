package server

import (
	"runtime/debug"
	"slices"
	"testing"
)

func TestSparingPercent(t *testing.T) {
	for _, tc := range []struct {
		live  uint64
		usual int
		want  int
	}{
		{live: 0, usual: 100, want: 100}, // nothing was collected yet
		{live: heapRoom / 4, usual: 100, want: 400},
		{live: heapRoom * 2 / 5, usual: 100, want: 250},
		{live: heapRoom, usual: 100, want: 100},
		{live: 10 * heapRoom, usual: 100, want: 100}, // a large heap is left as it is
		{live: 1, usual: 100, want: 1000},
		{live: heapRoom, usual: 300, want: 300},
		{live: heapRoom / 4, usual: -1, want: -1}, // nothing is collected
	} {
		if got := sparingPercent(tc.live, tc.usual); got != tc.want {
			t.Errorf("%d bytes at %d: %d, want %d", tc.live, tc.usual, got, tc.want)
		}
	}
}

// The percentage is raised with the first work, and as it was after the last.
func TestCollectorSpares(t *testing.T) {
	percent, sets := 150, []int{}
	c := &collector{
		read: func() (uint64, int) { return heapRoom / 4, percent },
		set:  func(p int) { percent, sets = p, append(sets, p) },
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
