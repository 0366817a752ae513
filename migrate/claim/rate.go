package claim

import "time"

const (
	// slow is the rate, in objects per second, up to which a migration is no reason to keep others waiting. The
	// engines do not go below many times that for clients.
	slow = 1
	// window is over how much time the rate of a migration is measured, and apart how far apart its marks are.
	window, apart = 30 * time.Second, 3 * time.Second
)

// mark is how far a migration was at a time: how many objects were done, how many of these were written, and how many
// had failed.
type mark struct {
	at                    time.Time
	done, written, failed int64
}

func markOf(at time.Time, p Progress) mark { return mark{at, p.Done, p.Done - p.Found, p.Failed} }

// marks are those of the last window, the oldest first, since a rewrite began.
type marks []mark

// next takes in a progress report. Time in which all migrations wait, or in which no object is written any more, says
// nothing.
func (m marks) next(now time.Time, p Progress) marks {
	n := len(m)
	if n == 0 || p.Done < m[n-1].done || p.Overloaded || p.Proving {
		return marks{markOf(now, p)}
	}
	for len(m) > 1 && now.Sub(m[1].at) >= window {
		m = m[1:]
	}
	if now.Sub(m[len(m)-1].at) >= apart {
		m = append(m, markOf(now, p))
	}
	return m
}

// rate is how many objects are written in a second; where all were found in the encoding, how many are found.
func (m mark) rate(now time.Time, p Progress) float64 {
	elapsed := now.Sub(m.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	done := p.Done - m.done
	if written := min(done, p.Done-p.Found-m.written); written > 0 {
		done = written
	}
	return float64(max(0, done)) / elapsed
}

// slow says whether hardly any objects are done with in a window. Where none are, only Progress.Hindered tells why.
func (m marks) slow(now time.Time, p Progress) bool {
	over, handled := now.Sub(m[0].at), p.Done-m[0].done+p.Failed-m[0].failed
	return over >= window && handled > 0 && float64(handled) <= slow*over.Seconds()
}

// hindered says whether others may be done beside a migration because it makes no progress, for a reason of its own, or
// hardly any: perSecond is the bound that its user sets, if not nil.
func hindered(now time.Time, p Progress, perSecond *int64, m marks) bool {
	bounded := perSecond != nil && *perSecond > 0 && *perSecond <= slow
	return !p.Overloaded && (p.Hindered != "" || bounded || m.slow(now, p))
}
