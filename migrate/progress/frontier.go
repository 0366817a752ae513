package progress

// Frontier is how far the pieces of some work, which begin one after the other and end in
// any order, are all done: behind the longest beginning of them. P says where a piece ends, C
// counts what became of it, and F is a failure in it. It needs a lock around it.
type Frontier[P, C, F any] struct {
	place    P
	counts   C
	failed   []F
	plus     func(C, C) C
	maxNamed int
	// pending are the pieces behind the frontier, in the order in which they began.
	pending []*Piece[P, C, F]
}

// Piece is a piece of the work.
type Piece[P, C, F any] struct {
	end    P
	counts C
	failed []F
	done   bool
}

// NewFrontier returns the frontier of work that was done up to a place before, with the
// counts there; plus adds counts. It names at most maxNamed failures.
func NewFrontier[P, C, F any](place P, counts C, plus func(C, C) C, maxNamed int) *Frontier[P, C, F] {
	return &Frontier[P, C, F]{place: place, counts: counts, plus: plus, maxNamed: maxNamed}
}

// Begin begins the piece behind all others, which ends at a place.
func (f *Frontier[P, C, F]) Begin(end P) *Piece[P, C, F] {
	p := &Piece[P, C, F]{end: end}
	f.pending = append(f.pending, p)
	return p
}

// Count adds to the counts of a piece.
func (f *Frontier[P, C, F]) Count(p *Piece[P, C, F], what C) { p.counts = f.plus(p.counts, what) }

// Name adds to the failures in a piece. Only those are kept that the frontier may come to
// name: many pieces may wait for one before them.
func (f *Frontier[P, C, F]) Name(p *Piece[P, C, F], failures ...F) {
	p.failed = append(p.failed, failures...)
	room := f.maxNamed - len(f.failed)
	for _, p := range f.pending {
		if p.failed = p.failed[:min(room, len(p.failed))]; len(p.failed) == 0 {
			p.failed = nil
		}
		room -= len(p.failed)
	}
}

// End marks a piece as done.
func (f *Frontier[P, C, F]) End(p *Piece[P, C, F]) {
	p.done = true
	for len(f.pending) > 0 && f.pending[0].done {
		first := f.pending[0]
		f.pending = f.pending[1:]
		f.place = first.end
		f.counts = f.plus(f.counts, first.counts)
		f.failed = append(f.failed, first.failed...)
	}
}

// Now returns the place up to which all is done, the counts up to there, and the
// failures up to there, in the order of the pieces.
func (f *Frontier[P, C, F]) Now() (place P, counts C, failed []F) {
	return f.place, f.counts, f.failed
}
