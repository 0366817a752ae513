package evolve

import "time"

// Recreate says whether a trigger that starts now and learns of storage versions from
// discovery must recreate a state with [Unknown]: "if the timestamp is more than 10
// minutes old, it recreates storageState object" (KEP-2343). With StorageVersions the
// epoch does this work, and the heartbeat only informs.
func Recreate(heartbeat, start time.Time) bool {
	return start.Sub(heartbeat) > DiscoveryPeriod
}
