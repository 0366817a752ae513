package api

import (
	"sync"
	"time"
)

// several others have to be written, for each object that is stuck, before it counts as the
// objects' own affair.
const several = 3

// stuck knows the objects that are being patched, of which the server is too busy for some. It
// is known by those that are written beside them whether it is the server or they.
type stuck struct {
	// patience is the run's.
	patience time.Duration

	mu      sync.Mutex // guards the fields below, and the objects
	begun   int        // patches
	objects map[*passedOver]struct{}
}

// passedOver is an object that is being patched, and maybe others in its stead.
type passedOver struct {
	// number is that of its patch now, in the order in which they began.
	number int
	// since is when the server was too busy for it for the first time; zero: it was not.
	since time.Time
	// own says that the server has not said each time that it is so for everybody.
	own bool
	// others counts those that were written by patches begun after one of this object, which
	// has number from: its first one, or the first one that the server was too busy for without
	// saying that it is so for everybody. last is when the last one was.
	from, others int
	last         time.Time
}

// begin notes that an object is patched, which is nil at first.
func (s *stuck) begin(p *passedOver) *passedOver {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	if p == nil {
		p = &passedOver{from: s.begun}
		s.objects[p] = struct{}{}
	}
	p.number = s.begun
	return p
}

// end notes that an object is done.
func (s *stuck) end(p *passedOver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, p)
}

// written notes that the patch of an object was taken.
func (s *stuck) written(p *passedOver, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.objects {
		if p.number > other.from {
			other.others, other.last = other.others+1, now
		}
	}
}

// refused notes that the server was too busy for an object, as for everybody if it says so.
func (s *stuck) refused(p *passedOver, now time.Time, everybody bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch first := p.since.IsZero(); {
	case first:
		p.since, p.own = now, !everybody
	case !p.own && !everybody:
		// That others were taken while it was throttled does not say why it is refused now.
		p.own, p.from, p.others, p.last = true, p.number, 0, time.Time{}
	}
}

// itself says whether it is for a refused object that the server is too busy for it, and no
// use to go on: if it was so for long while others are written, or if the run's patience with
// a server that answers nobody does not last. In that case it may also be that the server has
// gone away, which the objects that it refused since show, as they were passed over by few: it
// counts as there only if that is so of none of them.
func (s *stuck) itself(p *passedOver, now time.Time, lasts bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lasts {
		return now.Sub(p.since) >= 2*s.patience && now.Sub(p.last) < s.patience/2
	}
	refused := 0
	for one := range s.objects {
		if !one.since.IsZero() {
			refused++
		}
	}
	for one := range s.objects {
		if !one.since.IsZero() && !one.alone(refused, s.patience) {
			return false
		}
	}
	return true
}

// alone says whether the others that were written show that the server was there for all but
// an object, of so many that it refused. One that is only throttled may have had bad luck for
// some time.
func (p *passedOver) alone(refused int, patience time.Duration) bool {
	return p.others >= several*refused && (p.own || p.last.Sub(p.since) >= patience/2)
}
