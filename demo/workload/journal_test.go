package workload

import (
	"strings"
	"testing"
)

func TestJournal(t *testing.T) {
	key := ObjectKey{Resource: Gadgets, Name: "writer-a"}
	m := func(counter int64, attempt string) Mark {
		return Mark{Counter: counter, Attempt: attempt, Via: "server-1"}
	}
	type entry struct {
		mark    Mark
		outcome Outcome
	}
	history := []entry{{m(1, "x1"), Acknowledged}, {m(2, "x2"), Acknowledged}, {m(3, "x3"), Unavailable}, {m(3, "x4"), Broken}}
	for _, tt := range []struct {
		name    string
		found   map[ObjectKey]Stored
		lost    string
		foreign string
	}{
		{"the acknowledged write", map[ObjectKey]Stored{key: {mark: m(2, "x2"), filler: "f"}}, "", ""},
		{"the doubtful write", map[ObjectKey]Stored{key: {mark: m(3, "x4"), filler: "f"}}, "", ""},
		{"an older write", map[ObjectKey]Stored{key: {mark: m(1, "x1"), filler: "f"}}, "shows write 1, write 2 was acknowledged", ""},
		{"nothing", nil, "gone, write 2 was acknowledged", ""},
		{"changed content", map[ObjectKey]Stored{key: {mark: m(2, "x2"), filler: "g"}}, "content has changed", ""},
		{"the refused write", map[ObjectKey]Stored{key: {mark: m(3, "x3"), filler: "f"}}, "", "which server-1 refused"},
		{"another attempt", map[ObjectKey]Stored{key: {mark: m(3, "y"), filler: "f"}}, "", "which no client made"},
		{"an object of nobody", map[ObjectKey]Stored{key: {mark: m(2, "x2"), filler: "f"}, {Resource: Gadgets, Name: "z"}: {}}, "", "gadgets/z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newJournal()
			for _, e := range history {
				l.record(key, "f", e.mark, e.outcome)
			}
			if l.total() != 2 {
				t.Errorf("%d acknowledged, want 2", l.total())
			}
			lost, foreign := l.check(tt.found)
			assertOne(t, "lost", lost, tt.lost)
			assertOne(t, "foreign", foreign, tt.foreign)
		})
	}
}

func assertOne(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		t.Errorf("%s = %q, want one with %q", what, got, want)
	}
}

func TestJournalForgivesADoubtfulCreation(t *testing.T) {
	l := newJournal()
	l.record(ObjectKey{Name: "a"}, "f", Mark{Counter: 1, Attempt: "x"}, Broken)
	if lost, foreign := l.check(nil); len(lost)+len(foreign) > 0 {
		t.Errorf("lost %q, foreign %q: nobody was told that it was written", lost, foreign)
	}
}

func TestJournalConfirm(t *testing.T) {
	key := ObjectKey{Resource: Gadgets, Name: "a"}
	for _, tt := range []struct {
		name    string
		outcome Outcome
		foreign string
	}{
		{"a doubtful write was carried out", Broken, ""},
		{"a refused write was carried out", Unavailable, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newJournal()
			m := Mark{Counter: 1, Attempt: "x", Via: "server-1"}
			l.record(key, "f", m, tt.outcome)
			l.confirm(key, "f", m)
			// A later write must not hide what was seen.
			m = Mark{Counter: 2, Attempt: "y", Via: "server-1"}
			l.record(key, "f", m, Acknowledged)
			_, foreign := l.check(map[ObjectKey]Stored{key: {mark: m, filler: "f"}})
			assertOne(t, "foreign", foreign, tt.foreign)
			if l.total() != 2 {
				t.Errorf("%d acknowledged, want 2", l.total())
			}
		})
	}
}
