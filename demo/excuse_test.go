package demo

import (
	"fmt"
	"testing"
	"time"

	"github.com/concord-dev/concord/demo/workload"
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
		outcome  workload.Outcome
		from, to int
		excused  bool
	}{
		{"a", workload.Unavailable, 1, 2, true}, // retriable wherever it comes from
		{"a", workload.Broken, 12, 13, true},
		{"a", workload.Broken, 5, 10, true}, // under way when the server died
		{"a", workload.Broken, 1, 9, false},
		{"a", workload.Broken, 21, 22, false},
		{"b", workload.Broken, 12, 13, false}, // another server was killed
		{"b", workload.Unconnected, 35, 36, true},
		{"b", workload.Broken, 35, 36, false}, // a graceful stop breaks no connection
		{"b", workload.Unconnected, 41, 42, false},
		{"c", workload.Broken, 90, 95, true},
		{"c", workload.Unexpected, 90, 95, false},
		{"a", workload.Conflict, 12, 13, false},
	} {
		t.Run(fmt.Sprintf("%s %s %d", tt.server, tt.outcome, tt.from), func(t *testing.T) {
			got := excuse(workload.Failure{Server: tt.server, Outcome: tt.outcome, From: at(tt.from), To: at(tt.to)}, faults)
			if (got != "") != tt.excused {
				t.Errorf("excuse = %q, want excused %v", got, tt.excused)
			}
		})
	}
}
