package api

import (
	"sync"
	"time"
)

// several others have to be written, for each object that the server is too busy for, before it counts
// as the objects' own affair.
const several = 3

// stuck counts the objects of a run that were written, and those that the server is too busy for. By the
// ones beside them it is known whether that is for the server or for them.
type stuck struct {
	mu      sync.Mutex
	written int
	waiting int
}

// passedOver is an object that the server was too busy for.
type passedOver struct {
	// since is when it was so for the first time; written were the objects written by then.
	since   time.Time
	written int
	// own says that the server has not said each time that it is so for everybody.
	own bool
}

// took notes that an object was written.
func (s *stuck) took() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
}

// refused notes that the server is too busy for an object, as for everybody if it says so.
func (s *stuck) refused(p *passedOver, now time.Time, everybody bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.since.IsZero() {
		s.waiting++
		p.since, p.written = now, s.written
	}
	if !p.own && !everybody {
		// That others were written while it was throttled does not say why it is refused now.
		p.own, p.written = true, s.written
	}
}

// done notes that the run is over with an object.
func (s *stuck) done(p *passedOver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.since.IsZero() {
		s.waiting--
	}
}

// itself says whether the server is too busy for an object because of that: it was so for long while others
// were written, or nobody is answered any more, and before that enough were written beside all that wait.
func (s *stuck) itself(p *passedOver, waited time.Duration, patience time.Duration, answers bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := s.written - p.written
	if answers {
		return waited >= 2*patience && others >= several
	}
	return p.own && others >= several*s.waiting
}
