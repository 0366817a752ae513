package beside

import "testing"

// told counts the errors of a test.
type told struct {
	testing.TB
	errors int
}

func (*told) Helper()                 {}
func (f *told) Errorf(string, ...any) { f.errors++ }

// TestHolds: an acknowledged write that etcd does not have at its revision is an error, unless it is older than the
// history.
func TestHolds(t *testing.T) {
	h := History{begin: 5, changes: []Change{{Name: "a", Revision: 6}, {Name: "b", Revision: 8}, {Name: "a", Revision: 9, Deleted: true}}}
	for _, test := range []struct {
		acknowledged []Change
		made, errors int
	}{
		{[]Change{{Name: "a", Revision: 6}, {Name: "b", Revision: 8}}, 2, 0},
		{[]Change{{Name: "c", Revision: 5}, {Name: "a", Revision: 6}}, 1, 0},
		{[]Change{{Name: "a", Revision: 7}}, 1, 1},
		{[]Change{{Name: "a", Revision: 8}, {Name: "b", Revision: 8}}, 2, 1},
		{[]Change{{Name: "a", Revision: 9}}, 1, 1},
		{[]Change{{Name: "b", Revision: 10}}, 1, 1},
	} {
		f := &told{TB: t}
		if made := h.Holds(f, test.acknowledged); made != test.made || f.errors != test.errors {
			t.Errorf("%v: %d made, %d errors", test.acknowledged, made, f.errors)
		}
	}
}
