package agree

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// History is the record of encodings in a StorageVersion's annotations: the epoch, raised
// whenever the set of reported encodings changes, and the last epoch at which each encoding was
// reported. A controller that last read the StorageVersion at epoch 3 learns from it every
// encoding that may have been written since. It is bounded: the encodings reported the longest
// ago are forgotten, and such a reader gets Unknown for them.
// Invariant: 0 <= Forgotten < Last[e] <= Epoch, and Last[e] = Epoch for exactly the
// encodings reported now.
type History struct {
	Epoch int64
	Last  map[Encoding]int64
	// Forgotten is the newest epoch at which an encoding was last reported that is not in
	// Last any more; 0 if there is none.
	Forgotten int64
}

// The bound of a History's size: the bytes that its encodings take, each with a number
// beside it. A StorageVersion's annotations may have 256 KiB, and every server reads them.
const (
	maxHistory = 16 << 10
	perEpoch   = 24
)

// Next returns the history after reports have been written. h is not changed.
func (h History) Next(reports []Report) History { return h.next(reports, maxHistory) }

func (h History) next(reports []Report, bytes int) History {
	now := Encodings(reports)
	next := History{Epoch: h.Epoch, Last: maps.Clone(h.Last), Forgotten: h.Forgotten}
	if next.Last == nil {
		next.Last = map[Encoding]int64{}
	}
	if !slices.Equal(now, h.Reported()) {
		next.Epoch++
	}
	for _, e := range now {
		next.Last[e] = next.Epoch
	}
	next.forget(bytes)
	return next
}

// forget drops the oldest encodings until the history takes at most this number of bytes; it keeps every encoding that
// is reported now.
func (h *History) forget(bytes int) {
	size := 0
	for e := range h.Last {
		size += len(e) + perEpoch
	}
	for size > bytes {
		oldest := h.Epoch
		for _, at := range h.Last {
			oldest = min(oldest, at)
		}
		if oldest == h.Epoch {
			return
		}
		for e, at := range h.Last {
			if at == oldest {
				size -= len(e) + perEpoch
				delete(h.Last, e)
			}
		}
		h.Forgotten = oldest
	}
}

// Reported returns the encodings reported at the current epoch, sorted.
func (h History) Reported() []Encoding {
	return h.since(func(at int64) bool { return at == h.Epoch })
}

// Since returns the encodings last reported later than epoch, sorted, and Unknown among
// them if some of those are forgotten.
func (h History) Since(epoch int64) []Encoding {
	found := h.since(func(at int64) bool { return at > epoch })
	if at, named := slices.BinarySearch(found, Unknown); h.Forgotten > epoch && !named {
		found = slices.Insert(found, at, Unknown)
	}
	return found
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
	if h.Forgotten < 0 || h.Forgotten > 0 && h.Forgotten >= h.Epoch {
		return fmt.Errorf("encodings up to epoch %d are forgotten at epoch %d", h.Forgotten, h.Epoch)
	}
	first := int64(0)
	if h.Forgotten > 0 {
		first = h.Forgotten + 1
	}
	for e, at := range h.Last {
		if e == "" || at < first || at > h.Epoch {
			return fmt.Errorf("encoding %q was last reported at epoch %d, outside %d..%d", e, at, first, h.Epoch)
		}
	}
	return nil
}

// String prints the history as "epoch 3 (apps/v1@3 apps/v1beta1@1)", and behind it
// "forgotten up to 1" if some are.
func (h History) String() string {
	parts := make([]string, 0, len(h.Last))
	for _, e := range slices.Sorted(maps.Keys(h.Last)) {
		parts = append(parts, fmt.Sprintf("%s@%d", e, h.Last[e]))
	}
	said := fmt.Sprintf("epoch %d (%s)", h.Epoch, strings.Join(parts, " "))
	if h.Forgotten > 0 {
		said += fmt.Sprintf(" forgotten up to %d", h.Forgotten)
	}
	return said
}
