package observed

import (
	"slices"
	"strconv"
	"sync"
)

const (
	// chunk is the number of revisions in a chunk, in which two bytes identify a write.
	chunk = 1 << 16
	// maxOwnWrites bounds how many writes are remembered, in some 10 MiB.
	maxOwnWrites = 1 << 22
)

// OwnWrites distinguishes the writes of a migration from those of other clients by their resourceVersions, which no
// two writes share. Those of one migration lie close together, however much other clients write.
type OwnWrites struct {
	// since is the resourceVersion from before all of them; 0 if it is not known.
	since uint64

	mu sync.Mutex
	// chunks have the places of the writes in each chunk of revisions, in order; n counts them.
	chunks map[uint64][]uint16
	n      int
}

// NewOwnWrites returns an empty OwnWrites. since is a resourceVersion from before all of the writes; empty if it is
// not known.
func NewOwnWrites(since string) *OwnWrites {
	w := &OwnWrites{chunks: map[uint64][]uint16{}}
	w.since, _ = strconv.ParseUint(since, 10, 64) // 0 if it is none
	return w
}

// Add records a write. A write that is one too many counts as another client's, and is examined.
func (w *OwnWrites) Add(resourceVersion string) {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || rv <= w.since {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	places := w.chunks[rv/chunk]
	if i, found := slices.BinarySearch(places, uint16(rv%chunk)); !found && w.n < maxOwnWrites {
		w.chunks[rv/chunk] = slices.Insert(places, i, uint16(rv%chunk))
		w.n++
	}
}

// Later reports whether another client has written an object since then, or may have.
func (w *OwnWrites) Later(resourceVersion string) bool {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, own := slices.BinarySearch(w.chunks[rv/chunk], uint16(rv%chunk))
	return rv > w.since && !own
}
