package store

import "github.com/concord-dev/concord/migrate/progress"

// Cursor is a place in a run before which everything is done. A caller may keep it and resume a later run there, as
// long as nothing else could have been written since: the StorageVersion has the same uid and epoch, and the wanted
// encoding and the decoder are the same. The caller has to check that; then the values that clients wrote since are in
// the encoding.
type Cursor struct {
	// After is the last key that is done; empty at the beginning.
	After string
	// Progress counts what is done up to there.
	Progress Progress
	// Failed names the failures up to there that the run met, in key order and at most
	// Options.MaxNamed. It is not used to go on.
	Failed []Failure
}

// chunk is a piece of a page whose entries are judged together.
type chunk struct {
	entries []Entry
	// last is the key up to which everything is done when this chunk and all before it are.
	last string
	// held is how much of the budget it takes.
	held int64
	// piece has the outcome of the entries.
	piece *progress.Piece[string, Progress, Failure]
}
