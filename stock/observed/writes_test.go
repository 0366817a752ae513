package observed

import (
	"runtime"
	"strconv"
	"testing"
)

// TestOwnWrites: the writes of a migration of a million objects are remembered in few bytes, also where others
// write 70 times as much meanwhile.
func TestOwnWrites(t *testing.T) {
	const writes, apart = 1_000_000, 71
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	w := NewOwnWrites("1000")
	for i := range writes {
		w.Add(strconv.Itoa(2000 + apart*(i^1))) // answers come out of order
	}
	if after := heap(); after > before+6<<20 {
		t.Errorf("they take %d MiB", (after-before)>>20)
	}
	for i := 0; i < writes; i += 997 {
		if own, other := strconv.Itoa(2000+apart*i), strconv.Itoa(2001+apart*i); w.Later(own) || !w.Later(other) {
			t.Fatalf("somebody else has written %s: %v, and %s: %v", own, w.Later(own), other, w.Later(other))
		}
	}
	if w.Later("1000") || !w.Later("none") {
		t.Error("what is from before is somebody else's, or what nobody can tell is not")
	}
}

// TestTooManyOwnWrites: an own write that is one too many to be remembered counts as somebody else's, and is
// examined.
func TestTooManyOwnWrites(t *testing.T) {
	w := NewOwnWrites("")
	w.n = maxOwnWrites - 1
	w.Add("5")
	w.Add("5")
	w.Add("6")
	if w.Later("5") || !w.Later("6") || w.n != maxOwnWrites {
		t.Errorf("of the last of %d: %v, and of the next: %v", w.n, w.Later("5"), w.Later("6"))
	}
}
