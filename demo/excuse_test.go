package demo

import (
	"fmt"
	"testing"
	"time"

	"github.com/concord-dev/concord/testbed/load"
)

func at(seconds int) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds) * time.Second)
}

func TestExcuse(t *testing.T) {
	faults := []fault{
		{server: "a", kind: killed, from: at(10), to: at(20)},
		{server: "b", kind: rolled, from: at(30), to: at(40)},
		{server: "c", kind: paused, from: at(50)},
	}
	for _, tt := range []struct {
		server   string
		outcome  load.Outcome
		from, to int
		excused  bool
	}{
		{"a", load.Unavailable, 1, 2, true}, // retriable wherever it comes from
		{"a", load.Broken, 12, 13, true},
		{"a", load.Broken, 5, 10, true}, // under way when the server died
		{"a", load.Broken, 1, 9, false},
		{"a", load.Broken, 21, 22, false},
		{"b", load.Broken, 12, 13, false}, // another server was killed
		{"b", load.Unconnected, 35, 36, true},
		{"b", load.Broken, 35, 36, false}, // a graceful stop breaks no connection
		{"b", load.Unconnected, 41, 42, false},
		{"c", load.Broken, 90, 95, true},
		{"c", load.Unexpected, 90, 95, false},
		{"a", load.Conflict, 12, 13, false},
	} {
		t.Run(fmt.Sprintf("%s %s %d", tt.server, tt.outcome, tt.from), func(t *testing.T) {
			got := excuse(load.Failure{Server: tt.server, Outcome: tt.outcome, Started: at(tt.from), At: at(tt.to)}, faults)
			if (got != "") != tt.excused {
				t.Errorf("excuse = %q, want excused %v", got, tt.excused)
			}
		})
	}
}
