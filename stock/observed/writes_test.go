package observed

import (
	"runtime"
	"strconv"
	"testing"
)

// TestOwnWrites: the writes of a migration of a million objects take little memory, also if other clients
// write 70 times as much at the same time.
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
		w.Add(strconv.Itoa(2000 + apart*(i^1))) // out of order, like answers
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

// TestTooManyOwnWrites: an own write for which there is no more memory counts as another client's, and the
// object is examined.
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
