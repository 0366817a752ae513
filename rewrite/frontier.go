package rewrite

// Cursor is a place in a run before which everything is done. It may be kept, and a later
// run be told to go on there, as long as nothing else could be written since: the
// StorageVersion has the uid and epoch it had, the encoding wanted is the same, and so is
// what decodes. Who keeps it has to see to that; what clients wrote meanwhile is then in
// the encoding (design 3.7, I3).
type Cursor struct {
	// After is the last key that is done; empty at the beginning.
	After string
	// Progress counts what is done up to there.
	Progress Progress
	// Failed names the failures up to there that the run met, in key order and at most
	// Options.MaxNamed. It is not used to go on.
	Failed []Failure
}

// chunk is a piece of a page that is judged and written together.
type chunk struct {
	entries []Entry
	// last is the key up to which everything is done when this chunk and all before it are.
	last string
	done bool
	// held is how much of the budget it takes.
	held int64
	// settled is called when its values are not needed any more.
	settled func()
	// counts and failed are what became of the entries.
	counts Progress
	failed []Failure
}

// frontier is how far the chunks of a run, which end in any order, are all done.
type frontier struct {
	cursor Cursor
	// pending are the chunks behind the cursor, in key order.
	pending  []*chunk
	maxNamed int
}

func (f *frontier) begin(c *chunk) { f.pending = append(f.pending, c) }

// name adds to a chunk's failures. Only those are kept that may become the cursor's: many
// chunks may wait for one before them.
func (f *frontier) name(c *chunk, failures []Failure) {
	c.failed = append(c.failed, failures...)
	room := f.maxNamed - len(f.cursor.Failed)
	for _, p := range f.pending {
		if p.failed = p.failed[:min(room, len(p.failed))]; len(p.failed) == 0 {
			p.failed = nil
		}
		room -= len(p.failed)
	}
}

func (f *frontier) end(c *chunk) {
	clear(c.entries) // else the values live as long as any other piece of their page
	c.done, c.entries = true, nil
	for len(f.pending) > 0 && f.pending[0].done {
		first := f.pending[0]
		f.pending = f.pending[1:]
		f.cursor.After = first.last
		f.cursor.Progress = f.cursor.Progress.plus(first.counts)
		f.cursor.Failed = append(f.cursor.Failed, first.failed...)
	}
}
