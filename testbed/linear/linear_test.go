package linear

import (
	"testing"
	"time"
)

// TestCheck: histories of one object that are linearizable, and those that are not.
func TestCheck(t *testing.T) {
	type done struct {
		began, ended time.Duration
		in           Call
		out          Answer
	}
	create := done{1, 2, Call{Create, "a", "x"}, Answer{}}
	cut := func(d done) done { d.out = Answer{Unknown: true}; return d }
	tests := map[string]struct {
		calls []done
		wrong bool
	}{
		"read what was created":                        {calls: []done{create, {3, 4, Call{Verb: Get, Name: "a"}, Answer{Value: "x"}}}},
		"read nothing after the create":                {calls: []done{create, {3, 4, Call{Verb: Get, Name: "a"}, Answer{}}}, wrong: true},
		"read nothing beside the create":               {calls: []done{create, {1, 4, Call{Verb: Get, Name: "a"}, Answer{}}}},
		"read what nobody wrote":                       {calls: []done{create, {3, 4, Call{Verb: Get, Name: "a"}, Answer{Value: "y"}}}, wrong: true},
		"read the older value after the newer":         {calls: []done{create, cut(done{3, 4, Call{Update, "a", "y"}, Answer{}}), {5, 6, Call{Verb: Get, Name: "a"}, Answer{Value: "y"}}, {7, 8, Call{Verb: Get, Name: "a"}, Answer{Value: "x"}}}, wrong: true},
		"a cut off update happens late":                {calls: []done{create, cut(done{3, 4, Call{Update, "a", "y"}, Answer{}}), {5, 6, Call{Verb: Get, Name: "a"}, Answer{Value: "x"}}, {7, 8, Call{Verb: Get, Name: "a"}, Answer{Value: "y"}}}},
		"a cut off update never happens":               {calls: []done{create, cut(done{3, 4, Call{Update, "a", "y"}, Answer{}}), {5, 6, Call{Verb: Get, Name: "a"}, Answer{Value: "x"}}}},
		"update what was read":                         {calls: []done{create, {3, 4, Call{Update, "a", "y"}, Answer{Value: "x"}}}},
		"update something else":                        {calls: []done{create, {3, 4, Call{Update, "a", "y"}, Answer{Value: "z"}}}, wrong: true},
		"update nothing":                               {calls: []done{{1, 2, Call{Update, "a", "y"}, Answer{}}}, wrong: true},
		"a create is refused where there is one":       {calls: []done{create, {3, 4, Call{Create, "a", "y"}, Answer{Refused: true}}}},
		"a create is refused where there is none":      {calls: []done{{3, 4, Call{Create, "a", "y"}, Answer{Refused: true}}}, wrong: true},
		"the same create is answered twice":            {calls: []done{create, {3, 4, Call{Create, "a", "x"}, Answer{}}}, wrong: true},
		"a delete is refused where there is one":       {calls: []done{create, {3, 4, Call{Verb: Delete, Name: "a"}, Answer{Refused: true}}}, wrong: true},
		"read what was deleted":                        {calls: []done{create, {3, 4, Call{Verb: Delete, Name: "a"}, Answer{}}, {5, 6, Call{Verb: Get, Name: "a"}, Answer{Value: "x"}}}, wrong: true},
		"another object has nothing to do with it":     {calls: []done{create, {3, 4, Call{Verb: Get, Name: "b"}, Answer{}}}},
		"an update is cut off where nothing has been":  {calls: []done{cut(done{1, 2, Call{Update, "a", "y"}, Answer{}}), {3, 4, Call{Verb: Get, Name: "a"}, Answer{Value: "y"}}}, wrong: true},
		"a delete that was cut off makes room for one": {calls: []done{create, cut(done{3, 4, Call{Verb: Delete, Name: "a"}, Answer{}}), {5, 6, Call{Create, "a", "z"}, Answer{}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := NewHistory()
			for _, d := range test.calls {
				h.record(d.began, d.ended, map[Call]Answer{d.in: d.out})
			}
			if err := h.Check(time.Minute); (err != nil) != test.wrong {
				t.Error(err)
			}
		})
	}
}
