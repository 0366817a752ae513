package progress

import (
	"math/rand/v2"
	"testing"
)

// TestFrontier: the frontier is the end of the longest row of done pieces from the beginning, in
// whatever order pieces end. It keeps no more failures than it may name.
func TestFrontier(t *testing.T) {
	const named = 5
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		f := NewFrontier[int, int, int](-1, 1000, func(a, b int) int { return a + b }, named)
		pieces := make([]*Piece[int, int, int], 1+random.IntN(20))
		for i := range pieces {
			pieces[i] = f.Begin(i)
		}
		done := map[int]bool{}
		for _, i := range random.Perm(len(pieces)) {
			f.Count(pieces[i], 1)
			f.Name(pieces[i], i)
			f.Count(pieces[i], 1)
			f.End(pieces[i])
			done[i] = true
			place, counted, failed := f.Now()
			kept := len(failed)
			for _, p := range f.pending {
				kept += len(p.failed)
			}
			if kept > named {
				t.Fatalf("%d failures are kept", kept)
			}
			first := 0
			for done[first] {
				first++
			}
			if place != first-1 || counted != 1000+2*first || len(failed) != min(named, first) {
				t.Fatalf("%v are done: at %d, %d counted, %v failed", done, place, counted, failed)
			}
			for i, failure := range failed {
				if failure != i {
					t.Fatalf("%v are done, and %v failed", done, failed)
				}
			}
		}
	}
}

// TestLeftBehind: a piece of an earlier frontier that is still being worked on does not change the
// new frontier.
func TestLeftBehind(t *testing.T) {
	sum := func(a, b int) int { return a + b }
	old := NewFrontier[int, int, int](0, 0, sum, 2).Begin(7)
	f := NewFrontier[int, int, int](0, 0, sum, 2)
	next := f.Begin(1)
	f.Name(old, 70)
	f.End(old)
	if place, _, failed := f.Now(); place != 0 || len(failed) != 0 {
		t.Errorf("at %d, %v failed", place, failed)
	}
	f.End(next)
	if place, _, _ := f.Now(); place != 1 {
		t.Errorf("at %d", place)
	}
}
