package worlds

import (
	"testing"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/script"
)

// TestSmallWorldsBegin asserts that all events at the beginnings of small worlds, and of each of
// their threads, are possible; otherwise there would be nothing to try. Renewals of Leases may be
// impossible if none is due, and so may the end of a task that has ended already.
func TestSmallWorldsBegin(t *testing.T) {
	smalls, err := All()
	if err != nil {
		t.Fatal(err)
	}
	begin := func(s Small) *sim.World {
		w := sim.NewWorld(s.Config, nil)
		for i, e := range s.Begin {
			if !w.Do(e) && e.Role != script.Leasing && e.Do != script.Finish {
				t.Errorf("small world %s: event %d is not possible: %s", s.Name, i+1, e)
			}
		}
		return w
	}
	for _, s := range smalls {
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

// TestSmallWorlds tries the small worlds with one preemption; CI allows two.
func TestSmallWorlds(t *testing.T) {
	smalls, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range smalls {
		r := s.Exhaust(1, 10_000)
		if r.Violation != nil {
			t.Errorf("%s: %s\n%s", s.Name, r.Violation, script.FormatStory(s.Config, r.Script))
		}
		if r.Violation == nil && (!r.Complete || r.Schedules < 2 && len(s.Threads) > 0) {
			t.Errorf("%s: %d schedules, complete %t", s.Name, r.Schedules, r.Complete)
		}
	}
}
