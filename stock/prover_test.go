package stock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

func TestProve(t *testing.T) {
	for _, tc := range []struct {
		name     string
		all      bool
		objects  int
		versions []string
		checked  int
		holds    bool
		says     string
	}{
		{"few objects", false, 3, []string{"v2", "v2"}, 3, true, "of 3 objects"},
		{"a sample of many", false, sampleSize + 501, []string{"v2", "v2"}, sampleSize, true, ""},
		{"all of them", true, sampleSize + 501, []string{"v2", "v2"}, sampleSize + 501, true, ""},
		{"replicas write different versions", true, 7, []string{"v2", "v1"}, 7, false, "kube-apiservers write it differently); and 2 more"},
	} {
		s := startWidgets(t, tc.objects, tc.versions...)
		proof, err := s.prove(tc.all, exam{})
		if err != nil || proof.Checked != tc.checked || proof.Holds() != tc.holds || !strings.Contains(proof.String(), tc.says) {
			t.Errorf("%s: %d were checked: %s, %v", tc.name, proof.Checked, proof, err)
		}
		if tc.holds && s.patches != tc.checked*len(tc.versions) {
			t.Errorf("%s: %d patches of %d objects", tc.name, s.patches, tc.checked)
		}
	}
}

// One object of many that is left over is found if all are examined.
func TestProveFindsOne(t *testing.T) {
	s := startWidgets(t, sampleSize+501, "v2", "v2")
	s.objects[sampleSize+7].stored = "v1"
	proof, err := s.prove(true, exam{})
	if want := "empty patches changed 1 of 1501 objects: default/w01007 ("; err != nil || !strings.HasPrefix(proof.String(), want) {
		t.Errorf("the proof is %s, %v", proof, err)
	}
}

// A list whose token becomes too old goes on, or begins again, and comes to an end.
func TestProveExpired(t *testing.T) {
	const objects = sampleSize + 10
	for _, tc := range []struct {
		name    string
		all     bool
		tooOld  func(from, times int) error
		checked int
		fails   bool
	}{
		{"another token is given", true, func(from, _ int) error { return tooOld(fmt.Sprint(from, "-fresh")) }, objects, false},
		{"none is given, once", true, func(_, times int) error {
			if times > 1 {
				return nil
			}
			return tooOld("")
		}, objects + pageSize, false},
		{"none is given, once, to a sample", false, func(_, times int) error {
			if times > 1 {
				return nil
			}
			return tooOld("")
		}, sampleSize, false},
		{"none is given, ever", true, func(int, int) error { return tooOld("") }, 0, true},
		{"the tokens that are given are too old, ever", true, func(_, times int) error { return tooOld(fmt.Sprint(pageSize + times)) }, 0, true},
	} {
		s := startWidgets(t, objects, "v2")
		times := 0
		s.listed = func(from int) error {
			if from == 0 {
				return nil
			}
			times++
			return tc.tooOld(from, times)
		}
		proof, err := s.prove(tc.all, exam{})
		if (err != nil) != tc.fails || proof.Checked != tc.checked || s.lists > 40 {
			t.Errorf("%s: %d were checked, by %d lists: %v", tc.name, proof.Checked, s.lists, err)
		}
	}
}

// The bound per second is one of patches: as many for each object as there are replicas.
func TestProveTakesTurns(t *testing.T) {
	s := startWidgets(t, 20, "v2", "v2", "v2")
	var turns, done atomic.Int64
	_, err := s.prove(false, exam{turn: func(context.Context) (func(error), error) {
		turns.Add(1)
		return func(error) { done.Add(1) }, nil
	}})
	if n := int(turns.Load()); err != nil || n != 60 || n != s.patches || n != int(done.Load()) {
		t.Errorf("%d turns for %d patches, of which %d ended, %v", n, s.patches, done.Load(), err)
	}
}

// An object that was written later is found, also where the sample does not have it; the last look leaves
// all others alone, and has every replica patch the first of those that were written later.
func TestProveLater(t *testing.T) {
	const objects = sampleSize + 501
	for _, tc := range []struct {
		name    string
		last    bool
		later   int
		patches int
	}{
		{"in the proof", false, 1, 2*sampleSize + 1},
		{"in the last look", true, 1, 2},
		{"after many in the last look", true, sampleSize + 10, 2*sampleSize + 10},
		{"nothing", true, 0, 0},
	} {
		s := startWidgets(t, objects, "v2", "v2")
		since := fmt.Sprint(s.revision)
		for range tc.later {
			s.create("v2")
		}
		later := newOwnWrites(since).later
		proof, err := s.prove(false, exam{last: tc.last, later: later})
		if err != nil || !proof.Holds() || s.patches != tc.patches {
			t.Errorf("%s: %d patches: %s, %v", tc.name, s.patches, proof, err)
		}
		if tc.later == 0 {
			continue
		}
		s.objects[objects+tc.later-1].stored = "v1"
		if proof, err := s.prove(false, exam{last: tc.last, later: later}); err != nil || proof.Holds() {
			t.Errorf("%s: an object in v1: %s, %v", tc.name, proof, err)
		}
	}
}

// atOnce lets every patch through.
func atOnce(ctx context.Context) (func(error), error) { return func(error) {}, ctx.Err() }
