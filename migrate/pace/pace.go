// Package pace lets a migration go as fast as clients do not feel it. Both engines are paced by
// it: a Pacer compares the time that clients' requests take while objects are written with the time
// that they take without, and admits as many objects as keep the first near the second.
package pace

import (
	"math"
	"slices"
	"time"
)

// Bounds say how a migration gives way. The zero value is the default.
type Bounds struct {
	Blind bool // do not look at clients
	// MaxAdded is by how much the slower requests of clients may be lengthened. 0: by half of
	// what they take without a migration, and never less than 2 ms.
	MaxAdded time.Duration
	// Least is the rate, in objects per second and with all rests, that is kept whatever it adds: a
	// migration has to end, also where latencies are high for other reasons. 0: Default.
	Least        float64
	MaxPerSecond int // bounds the objects written per second in any case, if it is not 0; after a late timer a fifth more may go in one second
}

// Default is Bounds.Least for objects that are rewritten in the store. Patched is the one for objects that a server
// patches, which takes it several times as long.
const Default, Patched = 650, 100

// Latency is the time that requests took that ended in a period: nine of ten at most Slow.
type Latency struct {
	Requests int
	Slow     time.Duration
}

// Seen is an observation of clients over a time.
type Seen struct {
	Serving     bool               // they are served, also if none of their requests ended
	Undisturbed bool               // no object was migrated in that time
	Collecting  bool               // garbage is being collected from now on, or still: it takes the processor from them
	Latencies   map[string]Latency // of requests, by the class that they have in common
}

// Clients are the clients of a server. Watch begins to observe them, until stop is called. look returns the
// observation since the last call of look; the first call returns one of a short time before.
type Clients interface {
	Watch() (look func() Seen, stop func())
}

const (
	tick = 200 * time.Millisecond // how often the rate is decided on
	// restEvery: of this many ticks with clients the first two are a rest. Requests under way finish in the first; the
	// second shows how long requests take without the migration. The median of the last keptRests rests counts,
	// because something else may have disturbed any one of them.
	restEvery, keptRests = 24, 5
	// restMemory is over how many ticks, about, the part of rests is known. The least rate makes up
	// for as much of them as leaves a rate of not more than Least/mostResting.
	restMemory, mostResting = 50, 1. / 3
	enough                  = 5                     // requests, at least, to say something of them
	leastAdded              = 2 * time.Millisecond  // the added latency that is allowed in any case, without Bounds.MaxAdded
	burst                   = 20 * time.Millisecond // after which as many objects go at once as fell due
	unit                    = 16 << 10              // how large an object may be to count as one, in bytes
)

// State is the rate, which is decided from tick to tick, with the observations it is decided by.
type State struct {
	Rate    float64 // in objects per second: 0 in a rest, +Inf when nothing bounds it
	going   float64 // the rate between rests
	knee    float64 // the one that was too fast last; 0 if none was yet
	felt    float64 // the pressure that was known last
	ticks   int     // for how many clients have been served, and no garbage collected
	resting float64 // the part of the last ticks in which nothing was admitted
	// collecting: nothing is admitted in this tick since garbage is collected.
	collecting bool
	seen       map[string]Latency   // since a pressure was known
	rests      []map[string]Latency // the latencies in the last ones
}

// Next returns the state for the next tick, given the observation of clients in the last one and the objects per
// second that were written in it.
func (s State) Next(b Bounds, seen Seen, wrote float64) State {
	most := math.Inf(1)
	if b.MaxPerSecond > 0 {
		most = float64(b.MaxPerSecond)
	}
	if b.Blind || !seen.Serving {
		return State{Rate: most}
	}
	if b.Least == 0 {
		b.Least = Default
	}
	s.resting -= s.resting / restMemory
	if s.Rate == 0 && s.ticks > 0 {
		s.resting += 1. / restMemory
	}
	b.Least /= max(1-s.resting, mostResting)
	// Latencies seen while garbage was collected are not of the rate. Those before are.
	if disturbed := s.collecting; !disturbed {
		s = s.look(b, seen, wrote)
	}
	s.collecting = seen.Collecting && s.resting < 1-mostResting
	if s.Rate = min(s.going, most); s.collecting || s.ticks%restEvery == 1 || s.ticks%restEvery == 2 {
		s.Rate = 0
	}
	return s
}

// look takes in a tick in which no garbage was collected.
func (s State) look(b Bounds, seen Seen, wrote float64) State {
	switch place := s.ticks % restEvery; {
	case s.ticks == 0:
		if s.going = 2 * b.Least; seen.Undisturbed && len(seen.Latencies) > 0 { // as good as a rest
			s.rests, s.ticks = append(s.rests, seen.Latencies), 2
		}
	case place == 2:
		s.rests = append(s.rests[max(0, len(s.rests)+1-keptRests):len(s.rests):len(s.rests)], seen.Latencies)
		s.seen = nil
	case place != 1:
		s.seen = join(s.seen, seen.Latencies)
		if pressure, known := s.pressure(b); known {
			s = s.adapt(b, pressure, wrote)
		}
	}
	s.ticks++
	return s
}

// join merges the latencies of two periods, in the first of which there were few requests.
func join(one, other map[string]Latency) map[string]Latency {
	all := map[string]Latency{}
	for _, seen := range []map[string]Latency{one, other} {
		for class, l := range seen {
			all[class] = Latency{all[class].Requests + l.Requests, max(all[class].Slow, l.Slow)}
		}
	}
	return all
}

// pressure is the latency added to those requests to which most is added, as a part of the
// latency that may be added. It is not known where there are hardly any requests.
func (s State) pressure(b Bounds) (most float64, known bool) {
	for class, now := range s.seen {
		var without []time.Duration
		for _, rest := range s.rests {
			if rest[class].Requests >= enough {
				without = append(without, rest[class].Slow)
			}
		}
		if len(without) == 0 || now.Requests < enough {
			continue
		}
		slices.Sort(without)
		usual, may := without[(len(without)-1)/2], b.MaxAdded
		if may == 0 {
			may = max(usual/2, leastAdded)
		}
		most, known = max(most, float64(now.Slow-usual)/float64(may)), true
	}
	return most, known
}

// adapt decides on the rate by the result of the last one.
func (s State) adapt(b Bounds, pressure, wrote float64) State {
	felt := min(pressure, s.felt) // once may be chance
	s.seen, s.felt = nil, pressure
	switch {
	case felt > 1: // as fast as it was, and not as it was allowed to be, it was too fast
		reached := min(s.going, max(wrote, b.Least))
		s.going, s.knee = 0.7*reached, max(reached, s.knee/2)
		if felt > 2 {
			s.going /= 2
		}
		s.felt = 0 // the next pressure is still of this rate
	case pressure > 0.5 || wrote < s.going/2: // more may be too much, or would show nothing
	case s.knee == 0 || s.going < s.knee/2:
		s.going *= 2
	default:
		s.going += max(b.Least/10, s.going/20)
	}
	s.going = max(s.going, b.Least)
	return s
}
