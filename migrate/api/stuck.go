package api

import (
	"sync"
	"time"
)

// several others have to be written, for each object that the server is too busy for, before it counts
// as the objects' own affair.
const several = 3

// stuck counts the objects of a run that were written, and those for which the server was too busy. Comparing the two
// shows whether the server or the object is the cause.
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
	// own says that the server has not always said that it is busy in general.
	own bool
}

// took notes that an object was written.
func (s *stuck) took() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
}

// refused records that the server was too busy for an object; everybody means that it said it is busy in general.
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

// itself reports whether the object is the cause of the server's being too busy for it: that lasted for a long time
// while other objects were written, or the server answers nothing any more and enough objects were written before
// beside all that wait.
func (s *stuck) itself(p *passedOver, waited time.Duration, patience time.Duration, answers bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := s.written - p.written
	if answers {
		return waited >= 2*patience && others >= several
	}
	return p.own && others >= several*s.waiting
}
