package sim

import (
	"testing"

	"github.com/concord-dev/concord/sim/script"
)

// TestSmallWorldsBegin holds the beginnings of small worlds, and of each of their threads,
// to be as they were meant: an event that is not possible there would leave nothing to
// try. Leases are renewed when they are due, and a task that has ended need not be finished.
func TestSmallWorldsBegin(t *testing.T) {
	smalls, err := Smalls()
	if err != nil {
		t.Fatal(err)
	}
	begin := func(s Small) *World {
		w := NewWorld(s.Config, nil)
		for i, e := range s.Begin {
			if !w.Do(e) && e.Role != script.Leasing && e.Do != script.Finish {
				t.Errorf("small world %s: event %d is not possible: %s", s.Name, i+1, e)
			}
		}
		return w
	}
	for _, s := range smalls {
		if s.search != nil {
			continue
		}
		begin(s).Close()
		for i, thread := range s.Threads {
			w := begin(s)
			if !w.Do(thread[0]) {
				t.Errorf("small world %s: thread %d cannot begin: %s", s.Name, i+1, thread[0])
			}
			w.Close()
		}
	}
}
