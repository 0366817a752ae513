package evolve

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/concord-dev/concord/agree"
)

// For any reports, migrations and looks of the trigger, in any order, a key is called removable
// only if nothing may be stored with it: the encodings that may be stored are kept by brute force.
func TestRemovable(t *testing.T) {
	encodings := []agree.Encoding{"v1", "v2"}
	seals := []agree.Seal{"", "p:v1:a:1", "p:v1:b:2", "p:v1:c:3"}
	removed := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		any := func() agree.Encoding { return encodings[r.IntN(2)].Sealed(seals[r.IntN(len(seals))]) }
		sv := &StorageVersion{UID: "u"}
		report := func() {
			sv.Reports = []agree.Report{{Server: "s1", Encoding: any()}, {Server: "s2", Encoding: any()}}
			if r.IntN(2) == 0 {
				sv.Reports[1].Encoding = sv.Reports[0].Encoding
			}
			sv.History = sv.History.Next(sv.Reports)
			sv.Common, _ = agree.Common(sv.Reports)
		}
		report()
		may := map[agree.Encoding]bool{} // the encodings that objects may be stored in
		for _, e := range agree.Encodings(sv.Reports) {
			may[e] = true
		}
		state := &State{Of: sv.Ref(), Stored: agree.Encodings(sv.Reports)}
		for range 40 {
			var done []Migration
			if r.IntN(3) == 0 {
				report()
			} else if target, agreed := sv.Agreement(); agreed && r.IntN(2) == 0 && state.Of == sv.Ref() {
				clear(may)
				done = []Migration{{Phase: Succeeded, Target: target}}
			}
			for _, e := range agree.Encodings(sv.Reports) {
				may[e] = true
			}
			if r.IntN(3) == 0 && done == nil {
				continue // the trigger does not look
			}
			next := nextState(Believed(Observation{State: state, StorageVersion: sv, Migrations: done}))
			state = &next
			for e := range may {
				if slices.Contains(state.Removable, KeyOf(e)) {
					t.Fatalf("seed %d: %s is removable and %s may be stored: %s", seed, KeyOf(e), e, state)
				}
			}
			removed += len(state.Removable)
		}
	}
	if removed == 0 {
		t.Error("no key was ever removable")
	}
}

// Nothing is removable while objects may be stored in an encoding that nobody can name, and nothing
// is said of keys where none was ever used.
func TestRemovableUnknown(t *testing.T) {
	h := agree.History{}.Next([]agree.Report{{Server: "s", Encoding: "v1+p:v1:a:1"}}).Next([]agree.Report{{Server: "s", Encoding: "v1+p:v1:b:2"}})
	if got := removable(h, []agree.Encoding{Unknown, "v1+p:v1:b:2"}); len(got) > 0 {
		t.Errorf("with Unknown stored: %v", got)
	}
	if got := removable(h, []agree.Encoding{"v1+p:v1:b:2"}); !slices.Equal(got, []string{"p:v1:a:1"}) {
		t.Errorf("got %v", got)
	}
	plain := agree.History{}.Next([]agree.Report{{Server: "s", Encoding: "v1"}}).Next([]agree.Report{{Server: "s", Encoding: "v2"}})
	if got := removable(plain, []agree.Encoding{"v2"}); len(got) > 0 {
		t.Errorf("without any key: %v", got)
	}
}
