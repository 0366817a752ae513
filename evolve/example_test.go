package evolve_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

// All servers have agreed on v2 while objects are stored in v1, too. The StorageState gains v2
// first; then Decide returns that a migration is to be made.
func Example() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sv := &evolve.StorageVersion{
		UID: "sv", Common: "example.com/v2",
		History: agree.History{Epoch: 2, Last: map[agree.Encoding]int64{"example.com/v1": 1, "example.com/v2": 2}},
	}
	state := &evolve.State{
		Of: evolve.Ref{UID: "sv", Epoch: 1}, Stored: []agree.Encoding{"example.com/v1"}, Current: "example.com/v1",
		Heartbeat: now, Custom: true,
	}
	o := evolve.Observation{
		Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Now: now, State: state, StorageVersion: sv,
		CRD: &evolve.CRD{
			Name: "widgets.example.com", Storage: "example.com/v2",
			Versions:       []agree.Encoding{"example.com/v1", "example.com/v2"},
			StoredVersions: []agree.Encoding{"example.com/v1", "example.com/v2"},
		},
	}
	for range 2 {
		for _, action := range evolve.Decide(o) {
			fmt.Println(action)
			if written, ok := action.(evolve.WriteState); ok {
				o.State = &written.State
			}
		}
	}
	// Output:
	// write state sv/2 stored [example.com/v1,example.com/v2] current example.com/v2
	// create migration widgets.example.com-sv-2-1 to example.com/v2@sv/2, attempt 1
}
