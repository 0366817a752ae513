package evolve

import (
	"strings"
	"time"

	"github.com/concord-dev/concord/agree"
)

// discoveredUID begins the uid of the object that stands for a StorageVersion where there is none.
const discoveredUID = "discovery-"

// Discovered makes a StorageVersion for the Observation of a cluster without them (DESIGN 3.5).
// shown is the encoding in the discovery document, state the StorageState, nil if there is none,
// and start the time at which this trigger began to ask for discovery, once in a
// DiscoveryPeriod. The uid tells since when the document was read without a gap, and the epoch
// counts the changes seen since. As KEP-2343 says, a change that is taken back within one period
// is not seen.
func Discovered(state *State, shown agree.Encoding, start time.Time) *StorageVersion {
	of := Ref{UID: discoveredUID + start.UTC().Format(time.RFC3339), Epoch: 1}
	if state != nil && strings.HasPrefix(state.Of.UID, discoveredUID) && !Recreate(state.Heartbeat, start) {
		if of = state.Of; state.Current != shown {
			of.Epoch++
		}
	}
	return &StorageVersion{UID: of.UID, Common: shown, History: agree.History{Epoch: of.Epoch, Last: map[agree.Encoding]int64{shown: of.Epoch}}}
}

// Recreate says whether a trigger that starts now and learns of storage versions from
// discovery must recreate a state with [Unknown]: "if the timestamp is more than 10
// minutes old, it recreates storageState object" (KEP-2343). With StorageVersions the
// epoch does this work, and the heartbeat only informs.
func Recreate(heartbeat, start time.Time) bool {
	return start.Sub(heartbeat) > DiscoveryPeriod
}
