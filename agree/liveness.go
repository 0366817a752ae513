package agree

import (
	"maps"
	"slices"
	"time"
)

// Beat is one observation of an identity Lease.
type Beat struct {
	Server          ServerID
	UID             string
	ResourceVersion string
	// Renewed is opaque and changes with every renewal.
	Renewed string
	// Duration is how long the Lease lives without a renewal.
	Duration time.Duration
}

// Liveness judges which identity Leases have expired: those not renewed during a whole
// Duration of successful observation. Time in which the API or etcd did not answer does
// not count, so that nobody is declared gone for renewals that could not be made.
// The zero value has seen nothing.
type Liveness struct {
	seen map[ServerID]sighting
}

type sighting struct {
	beat   Beat
	silent time.Duration
}

// Observe records a complete and successful observation. elapsed is the time since the
// previous one, and must be 0 when an attempt in between failed: what passed during an
// outage is not observed time.
func (l *Liveness) Observe(elapsed time.Duration, leases []Beat) {
	next := make(map[ServerID]sighting, len(leases))
	for _, beat := range leases {
		old, known := l.seen[beat.Server]
		if known && old.beat.UID == beat.UID && old.beat.Renewed == beat.Renewed {
			next[beat.Server] = sighting{beat: beat, silent: old.silent + max(elapsed, 0)}
			continue
		}
		next[beat.Server] = sighting{beat: beat}
	}
	l.seen = next
}

// Expired returns the Leases that were not renewed during their whole duration, by server.
func (l *Liveness) Expired() []Beat {
	var expired []Beat
	for _, id := range slices.Sorted(maps.Keys(l.seen)) {
		if s := l.seen[id]; s.silent > s.beat.Duration {
			expired = append(expired, s.beat)
		}
	}
	return expired
}
