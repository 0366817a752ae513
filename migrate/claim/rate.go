package claim

import "time"

const (
	// slow is the rate, in objects per second, up to which a migration is no reason to keep others waiting, and
	// slowFor for how long it must have been so slow.
	slow, slowFor = 1, 30 * time.Second
	// window is over how much time the rate that users see is measured. It is short, since objects that are found in the
	// encoding are done many times as fast as those that are written; those found before the first is written do not count.
	window = 10 * time.Second
)

// mark is how many objects were done at a time, and how many had failed.
type mark struct {
	at           time.Time
	done, failed int64
}

// marks are those of the last half minute since a rewrite began, a second or more apart, the oldest first.
type marks []mark

// next takes in a progress report. Time in which all migrations wait says nothing.
func (m marks) next(now time.Time, p Progress) marks {
	if n := len(m); n == 0 || p.Done < m[n-1].done || p.Overloaded {
		return marks{{now, p.Done, p.Failed}}
	}
	for len(m) > 1 && now.Sub(m[1].at) >= slowFor {
		m = m[1:]
	}
	if now.Sub(m[len(m)-1].at) >= time.Second {
		m = append(m, mark{now, p.Done, p.Failed})
	}
	return m
}

// rate is how many objects were done per second in the last window.
func (m marks) rate(now time.Time, p Progress) float64 {
	for len(m) > 1 && now.Sub(m[1].at) >= window {
		m = m[1:]
	}
	return m[0].rate(now, p)
}

func (m mark) rate(now time.Time, p Progress) float64 {
	elapsed := now.Sub(m.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	return float64(max(0, p.Done-m.done)) / elapsed
}

// slow says whether hardly any objects are done with. Where none are, only Progress.Hindered tells why.
func (m marks) slow(now time.Time, p Progress) bool {
	over, handled := now.Sub(m[0].at), p.Done-m[0].done+p.Failed-m[0].failed
	return !p.Proving && over >= slowFor && handled > 0 && float64(handled) <= slow*over.Seconds()
}

// hindered says whether others may be done beside a migration because it makes no progress, for a reason of its own, or
// hardly any: perSecond is the bound that its user sets, if not nil.
func hindered(now time.Time, p Progress, perSecond *int64, m marks) bool {
	bounded := perSecond != nil && *perSecond > 0 && *perSecond <= slow
	return !p.Overloaded && (p.Hindered != "" || bounded || m.slow(now, p))
}
