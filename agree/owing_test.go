package agree

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestOwing: an aggregated API server holds the permission to write a resource, and its report of it is
// lost. It is then reported as Unknown, so that servers do not agree on a version without it. Other
// resources and other servers are not affected.
func TestOwing(t *testing.T) {
	flunders, fischers := schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}, schema.GroupResource{Group: "wardle.example.com", Resource: "fischers"}
	participants := NewParticipants([]ServerID{"a", "r1", "r2"}, off("x")).Holds("r1", flunders).Holds("r2", flunders, fischers)
	quiet := NewParticipants([]ServerID{"a", "r1", "r2"}, nil)
	holding := quiet.Holds("r1", flunders)
	for _, tc := range []struct {
		name         string
		participants Participants
		of           schema.GroupResource
		reports      []Report
		want         []Report // what Settle returns; Merge adds the own report
	}{
		{"made anew", holding, flunders, nil, []Report{silence("r1")}},
		{"made anew by another replica", holding, flunders, []Report{report("r2", v1)}, []Report{report("r2", v1), silence("r1")}},
		{"said before", holding, flunders, []Report{silence("r1"), report("r2", v1)}, []Report{silence("r1"), report("r2", v1)}},
		{"it has reported again", holding, flunders, []Report{report("r1", v1beta1), report("r2", v1)}, []Report{report("r1", v1beta1), report("r2", v1)}},
		{"its Lease is gone", NewParticipants([]ServerID{"a", "r2"}, nil), flunders, []Report{silence("r1"), report("r2", v1)}, []Report{report("r2", v1)}},
		{"it does not have this resource", holding, fischers, []Report{report("r2", v1)}, []Report{report("r2", v1)}},
		{"it is starting", quiet, flunders, []Report{report("r2", v1)}, []Report{report("r2", v1)}},
		{"beside a silent server", participants, fischers, nil, []Report{silence("r2"), silence("x")}},
		{"two, and a silent server", participants, flunders, []Report{report("a", v1)}, []Report{report("a", v1), silence("r1"), silence("r2"), silence("x")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := tc.participants.For(tc.of)
			got := Settle(tc.reports, p)
			if !Equal(got, tc.want) {
				t.Errorf("Settle: got %v, want %v", got, tc.want)
			}
			if again := Settle(got, p); !Equal(again, got) {
				t.Errorf("Settle again: got %v, want %v", again, got)
			}
			for _, r := range got {
				if _, silent := p.silent[r.Server]; r.Encoding == Unknown && !silent && r.Silence != Owing {
					t.Errorf("%s: the reason is %q", r.Server, r.Silence)
				}
			}
			for _, id := range []ServerID{"a", "r1"} {
				merged := Merge(tc.reports, report(id, v1), p)
				if own, ok := Of(merged, id); !ok || own.Encoding != v1 {
					t.Errorf("Merge of %s: got %v, without its report", id, merged)
				}
				if err := Validate(merged); err != nil {
					t.Errorf("Merge of %s: %v", id, err)
				}
				if again := Settle(merged, p); !Equal(again, merged) && p.Has(id) {
					t.Errorf("Settle after Merge of %s: got %v, want %v", id, again, merged)
				}
			}
		})
	}
	if len(quiet.holding) != 0 || len(holding.owing) != 0 {
		t.Error("the participants were changed")
	}
}
