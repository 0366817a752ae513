package stock

import (
	"strconv"
	"sync"
)

// ownWrites tells the writes of a migration from those of others by their resourceVersions, which no two
// writes share. It has a bit for each: those of one migration lie close together.
type ownWrites struct {
	// since is the resourceVersion from before all of them; 0 if it is not known.
	since uint64

	mu   sync.Mutex
	bits map[uint64]uint64
}

func newOwnWrites(since string) *ownWrites {
	w := &ownWrites{bits: map[uint64]uint64{}}
	w.since, _ = strconv.ParseUint(since, 10, 64) // 0 if it is none
	return w
}

func (w *ownWrites) add(resourceVersion string) {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || rv <= w.since {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bits[rv/64] |= 1 << (rv % 64)
}

// later says whether somebody else has written an object since then, or may have.
func (w *ownWrites) later(resourceVersion string) bool {
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return rv > w.since && w.bits[rv/64]&(1<<(rv%64)) == 0
}
