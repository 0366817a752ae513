package evolve

import (
	"testing"

	"github.com/concord-dev/concord/agree"
)

func TestStoredSet(t *testing.T) {
	history := func(epoch int64, last map[agree.Encoding]int64) *StorageVersion {
		return &StorageVersion{UID: "u", History: agree.History{Epoch: epoch, Last: last}}
	}
	state := func(uid string, epoch int64, stored ...agree.Encoding) *State {
		return &State{Of: Ref{UID: uid, Epoch: epoch}, Stored: stored}
	}
	v1 := history(1, map[agree.Encoding]int64{"g/v1": 1})
	forgetful := history(3, map[agree.Encoding]int64{"g/v3": 3})
	forgetful.History.Forgotten = 2
	for name, test := range map[string]struct {
		state *State
		sv    *StorageVersion
		want  string
	}{
		"nothing is known":                {nil, nil, "Unknown"},
		"no state":                        {nil, v1, "Unknown,g/v1"},
		"no StorageVersion":               {state("u", 1, "g/v1"), nil, "g/v1,Unknown"},
		"at the same epoch":               {state("u", 1, "g/v1"), v1, "g/v1"},
		"behind by a moment":              {state("u", 1, "g/v1"), history(3, map[agree.Encoding]int64{"g/v1": 3, "g/v2": 2}), "g/v1,g/v2"},
		"behind by what is forgotten":     {state("u", 1, "g/v1"), forgetful, "g/v1,Unknown,g/v3"},
		"not behind what is forgotten":    {state("u", 2, "g/v1"), forgetful, "g/v1,g/v3"},
		"all servers have left":           {state("u", 1, "g/v1"), history(2, map[agree.Encoding]int64{"g/v1": 1}), "g/v1"},
		"another StorageVersion":          {state("other", 1, "g/v2"), v1, "g/v2,Unknown,g/v1"},
		"the epoch went back":             {state("u", 9, "g/v2"), v1, "g/v2,Unknown,g/v1"},
		"a state that was never computed": {state("", 0), v1, "Unknown,g/v1"},
		"a state without a set":           {state("u", 1), v1, "Unknown,g/v1"},
		"Unknown stays":                   {state("u", 1, Unknown, "g/v1"), v1, "Unknown,g/v1"},
	} {
		if got := agree.Join(StoredSet(test.state, test.sv)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}
