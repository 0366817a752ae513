package agree

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// History is what a StorageVersion remembers of the encodings reported for its
// resource: the epoch, raised whenever the set of reported encodings changes, and the
// last epoch at which each encoding was reported. It lets a reader that looked away
// know every encoding that could have been written meanwhile.
// Invariant: 0 <= Last[e] <= Epoch, and Last[e] = Epoch for exactly the encodings
// reported now.
type History struct {
	Epoch int64
	Last  map[Encoding]int64
}

// Next returns the history after reports have been written. h is not changed.
func (h History) Next(reports []Report) History {
	now := Encodings(reports)
	next := History{Epoch: h.Epoch, Last: maps.Clone(h.Last)}
	if next.Last == nil {
		next.Last = map[Encoding]int64{}
	}
	if !slices.Equal(now, h.Reported()) {
		next.Epoch++
	}
	for _, e := range now {
		next.Last[e] = next.Epoch
	}
	return next
}

// Reported returns the encodings reported at the current epoch, sorted.
func (h History) Reported() []Encoding {
	return h.since(func(at int64) bool { return at == h.Epoch })
}

// Since returns the encodings last reported later than epoch, sorted.
func (h History) Since(epoch int64) []Encoding {
	return h.since(func(at int64) bool { return at > epoch })
}

func (h History) since(keep func(at int64) bool) []Encoding {
	var found []Encoding
	for e, at := range h.Last {
		if keep(at) {
			found = append(found, e)
		}
	}
	slices.Sort(found)
	return found
}

// Validate says which part of the invariant does not hold.
func (h History) Validate() error {
	if h.Epoch < 0 {
		return fmt.Errorf("epoch %d is negative", h.Epoch)
	}
	for e, at := range h.Last {
		if e == "" || at < 0 || at > h.Epoch {
			return fmt.Errorf("encoding %q was last reported at epoch %d, outside 0..%d", e, at, h.Epoch)
		}
	}
	return nil
}

// String prints the history as "epoch 3 (apps/v1@3 apps/v1beta1@1)".
func (h History) String() string {
	parts := make([]string, 0, len(h.Last))
	for _, e := range slices.Sorted(maps.Keys(h.Last)) {
		parts = append(parts, fmt.Sprintf("%s@%d", e, h.Last[e]))
	}
	return fmt.Sprintf("epoch %d (%s)", h.Epoch, strings.Join(parts, " "))
}
