package evolve

import (
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// HeartbeatPeriod is how often a StorageState's lastHeartbeatTime is refreshed. A check
	// for old ones allows DiscoveryPeriod, so that one refresh may be late or missing.
	HeartbeatPeriod = 5 * time.Minute
	// DiscoveryPeriod is how often the discovery document has to be read where there is no
	// StorageVersion API (KEP-2343: "10 minutes is a good middle ground").
	DiscoveryPeriod = 10 * time.Minute

	// minBackoff and MaxBackoff bound the time between two attempts at a migration.
	minBackoff = 10 * time.Second
	MaxBackoff = 10 * time.Minute
	// maxLasting bounds the time between two attempts after reasons that do not pass by themselves.
	maxLasting = 24 * time.Hour

	// missingGrace is how long a migration may wait for a resource that no server serves, unmanagedGrace for one that
	// is served but not reported.
	missingGrace   = 5 * time.Second
	unmanagedGrace = time.Minute

	// staleWait is when to look again after an impossible reading.
	staleWait = 10 * time.Second
)

// Backoff returns how long to wait after the failures-th failure in a row, failures > 0.
func Backoff(failures int) time.Duration { return doubled(minBackoff, MaxBackoff, failures) }

// LastingBackoff returns how long to wait after the failures-th failure in a row, failures > 0, for reasons that do not
// pass by themselves. Every attempt writes all objects, and admission may have them grow by each.
func LastingBackoff(failures int) time.Duration { return doubled(MaxBackoff, maxLasting, failures) }

// doubled is wait after the first failure, twice as long after each further one, and never more than most.
func doubled(wait, most time.Duration, failures int) time.Duration {
	for range failures - 1 {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return wait
}

// Due says whether a heartbeat has to be refreshed, also when it lies far in the future.
// Each resource has one moment for it in every period, so that the writes of many are
// spread over the whole of it, whenever their last ones were.
func Due(gr schema.GroupResource, heartbeat, now time.Time) bool {
	left := heartbeat.Add(UntilBeat(gr, heartbeat)).Sub(now)
	return left <= 0 || left > 2*HeartbeatPeriod
}

// UntilBeat returns how long it is from now to the resource's next moment for a
// heartbeat: more than zero, and at most HeartbeatPeriod. The moments are whole seconds,
// as heartbeats are when they are read back: a heartbeat stays on its side of them.
func UntilBeat(gr schema.GroupResource, now time.Time) time.Duration {
	hash := fnv.New32a()
	hash.Write([]byte(gr.String()))
	offset := time.Duration(hash.Sum32()%uint32(HeartbeatPeriod/time.Second)) * time.Second
	return offset + now.Add(-offset).Truncate(HeartbeatPeriod).Add(HeartbeatPeriod).Sub(now)
}

// remaining returns the time left at now of a period that began at since, never less than zero. Servers' clocks
// differ: a beginning more than a period in the future is not trusted, and nothing of the period is left.
func remaining(since time.Time, period time.Duration, now time.Time) time.Duration {
	left := since.Add(period).Sub(now)
	if left <= 0 || left > 2*period {
		return 0
	}
	return left
}

// startingWait is how long servers that are still starting are waited for: at most one
// Lease duration from when they registered.
func startingWait(o Observation) time.Duration {
	var wait time.Duration
	for _, s := range o.Starting {
		wait = max(wait, remaining(s.Since, s.Lease, o.Now))
	}
	return wait
}
