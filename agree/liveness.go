package agree

import (
	"cmp"
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
// Duration of contiguous observation in which renewals could be made. A failed observation
// interrupts it: call Forget. Lists may be answered while puts fail (an etcd without space
// takes none), so that time counts only while puts are seen to work: a third of the Lease's
// Duration after each. After two thirds of the shortest Duration without a put the silence of
// every Lease is counted from zero again. The shortest is that of the Leases that were put within
// their Duration: one put of a Lease that lasts for an hour tells nothing about the next minutes.
//
// A server that observes has a Lease itself. If it renews at least twice per Duration, its
// own renewals are puts enough to expire all others. The zero value has seen nothing.
type Liveness struct {
	seen []sighting // one for each server
	// unproven is the observed time since a Lease was last seen to be new or renewed.
	unproven time.Duration
	// promised is the shortest Duration of the Leases that were alive then.
	promised time.Duration
}

type sighting struct {
	beat   Beat
	silent time.Duration
	// unput is silent, but never counted from zero again before the Lease is put.
	unput time.Duration
}

// Observe records a complete and successful observation. elapsed is the observed time
// since the previous one.
func (l *Liveness) Observe(elapsed time.Duration, leases []Beat) {
	elapsed = max(elapsed, 0)
	next := make([]sighting, 0, len(leases))
	put := false
	for _, beat := range leases {
		i := slices.IndexFunc(l.seen, func(s sighting) bool { return s.beat.Server == beat.Server })
		if i >= 0 && l.seen[i].beat.UID == beat.UID && l.seen[i].beat.Renewed == beat.Renewed {
			proven := l.proven(elapsed, beat.Duration)
			next = append(next, sighting{beat: beat, silent: l.seen[i].silent + proven, unput: l.seen[i].unput + proven})
			continue
		}
		next = append(next, sighting{beat: beat})
		put = true
	}
	l.seen = next
	if put {
		l.unproven, l.promised = 0, l.shortest()
		return
	}
	if l.unproven += elapsed; l.unproven > 2*l.promised/3 {
		l.silence()
	}
}

// shortest returns the shortest Duration of the Leases that were put within it; there is one.
func (l *Liveness) shortest() time.Duration {
	alive := slices.DeleteFunc(slices.Clone(l.seen), func(s sighting) bool { return s.unput > s.beat.Duration })
	return slices.MinFunc(alive, func(a, b sighting) int { return cmp.Compare(a.beat.Duration, b.beat.Duration) }).beat.Duration
}

// proven returns how much of the time since the last observation counts for a Lease of
// this duration.
func (l *Liveness) proven(elapsed, duration time.Duration) time.Duration {
	if l.unproven == 0 {
		return elapsed // a put was seen by the observation before
	}
	return min(elapsed, max(min(duration, l.promised)/3-l.unproven, 0))
}

// silence restarts the silence of every Lease.
func (l *Liveness) silence() {
	for i := range l.seen {
		l.seen[i].silent = 0
	}
}

// Forget records that the Leases were not observed for a while, also because an attempt failed: every Lease's silence
// restarts with the next observation.
func (l *Liveness) Forget() { *l = Liveness{} }

// Expired returns the Leases that were not renewed during their whole duration, by server.
func (l *Liveness) Expired() []Beat {
	var expired []Beat
	for _, s := range l.seen {
		if s.silent > s.beat.Duration {
			expired = append(expired, s.beat)
		}
	}
	slices.SortFunc(expired, func(a, b Beat) int { return cmp.Compare(a.Server, b.Server) })
	return expired
}
