package sim

import "testing"

// TestSmallWorldsBegin holds the beginnings of small worlds to be as they were meant: an
// event that is not possible there would leave nothing to try. Leases are renewed when
// they are due, and what has ended need not be finished.
func TestSmallWorldsBegin(t *testing.T) {
	smalls, err := Smalls()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range smalls {
		w := NewWorld(s.Config, nil)
		for i, e := range s.Begin {
			if !w.Do(e) && e.Role != leasing && e.Do != Finish {
				t.Errorf("small world %s: event %d is not possible: %s", s.Name, i+1, e)
			}
		}
		w.Close()
	}
}
