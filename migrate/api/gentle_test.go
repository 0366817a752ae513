package api

import (
	"testing"
	"time"
)

// TestGentle: beside a server that works on two patches at a time, which take 4 ms, few more than two
// are under way, and as many again once it works on four; or as
// many as lengthen patches by no more than the bound that is set.
func TestGentle(t *testing.T) {
	for name, test := range map[string]struct {
		of          gentle
		processors  float64
		least, most float64
	}{
		"two":                   {gentle{}, 2, 2, 4},
		"eight":                 {gentle{}, 8, 8, 10},
		"one":                   {gentle{}, 1, 1, 2.5},
		"half as long again":    {gentle{most: 2 * time.Millisecond}, 8, 9, 13},
		"as many as there may":  {gentle{}, 1000, 32, 32},
		"eight times as long":   {gentle{most: 28 * time.Millisecond}, 2, 8, 17},
		"it is bound to be one": {gentle{most: 1}, 0.1, 1, 1},
	} {
		w := window{limit: 1, most: 32, gentle: &test.of}
		for i := range 5500 {
			took := time.Duration(float64(4*time.Millisecond) * max(1, float64(w.now())/test.processors))
			w = w.taken(time.Time{}.Add(time.Duration(i+1)), took)
		}
		if w.limit < test.least || w.limit > test.most {
			t.Errorf("%s: %v under way, want %v to %v", name, w.limit, test.least, test.most)
		}
	}
}

// TestGentleSlow: where each patch takes seconds, as behind a slow webhook, few of them are made one at a time.
func TestGentleSlow(t *testing.T) {
	g := gentle{}
	for range leastRested {
		if !g.rests() {
			t.Fatal("it does not rest at first")
		}
		g = g.after(20 * time.Second)
	}
	if g.rests() || g.base != 20*time.Second || g.grows(1) != 1 {
		t.Errorf("after %d patches of 20 s it rests: %t, and knows of %v", leastRested, g.rests(), g.base)
	}
}

// TestGentleAgain: a server that has become slower is not taken for one where patches wait, once one
// alone has taken as long.
func TestGentleAgain(t *testing.T) {
	g := gentle{}
	for range restEvery {
		g = g.after(time.Millisecond)
	}
	for range rested - 1 {
		g = g.after(5 * time.Millisecond)
	}
	if g.base != time.Millisecond || !g.rests() {
		t.Errorf("base is %v in a rest", g.base)
	}
	for range 100 {
		g = g.after(5 * time.Millisecond)
	}
	if g.base != 5*time.Millisecond || g.rests() || g.grows(1) != 1 {
		t.Errorf("base is %v behind it, usual %v", g.base, g.usual)
	}
}
