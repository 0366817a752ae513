package claim

import "time"

const (
	// slow is the rate, in objects per second, up to which a migration is no reason to keep others waiting. The
	// engines do not go below many times that for clients.
	slow = 1
	// measuredOver is the shortest time over which the rate is measured.
	measuredOver = 30 * time.Second
)

// rate is how fast a migration is, measured over one stretch of time after the other.
type rate struct {
	since time.Time // when the stretch began
	done  int64     // how many objects were done with then
	slow  bool      // in the last stretch
}

// next takes in a progress report. A stretch ends when an object is done with, since only Progress.Hindered tells why
// nothing is. One in which all migrations wait, or in which no object is written any more, says nothing.
func (r rate) next(now time.Time, p Progress) rate {
	done, over := p.Done+p.Failed, now.Sub(r.since)
	switch {
	case r.since.IsZero() || done < r.done || p.Overloaded || p.Proving:
		return rate{since: now, done: done}
	case done > r.done && over >= measuredOver:
		return rate{since: now, done: done, slow: float64(done-r.done) <= slow*over.Seconds()}
	}
	return r
}

// hindered says whether others may be done beside a migration because it makes no progress, for a reason of its own, or
// hardly any: perSecond is the bound that its user sets, if not nil.
func hindered(p Progress, perSecond *int64, r rate) bool {
	bounded := perSecond != nil && *perSecond > 0 && *perSecond <= slow
	return !p.Overloaded && (p.Hindered != "" || bounded || r.slow)
}
