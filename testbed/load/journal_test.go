package load

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var gadgets = schema.GroupResource{Group: "example.com", Resource: "gadgets"}

func TestJournal(t *testing.T) {
	key := Key{Resource: gadgets, Name: "writer-a"}
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
		found   map[Key]Stored
		lost    string
		foreign string
	}{
		{"the acknowledged write", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "f"}}, "", ""},
		{"the doubtful write", map[Key]Stored{key: {Mark: m(3, "x4"), Filler: "f"}}, "", ""},
		{"an older write", map[Key]Stored{key: {Mark: m(1, "x1"), Filler: "f"}}, "shows write 1, write 2 was acknowledged", ""},
		{"nothing", nil, "gone, write 2 was acknowledged", ""},
		{"changed content", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "g"}}, "content has changed", ""},
		{"the refused write", map[Key]Stored{key: {Mark: m(3, "x3"), Filler: "f"}}, "", "which server-1 refused"},
		{"another attempt", map[Key]Stored{key: {Mark: m(3, "y"), Filler: "f"}}, "", "which no client made"},
		{"an object of nobody", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "f"}, {Resource: gadgets, Name: "z"}: {}}, "", "gadgets/z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewJournal()
			for _, e := range history {
				l.Note(key, "f", e.mark, e.outcome)
			}
			if n, _, _ := l.Counts(); n != 2 {
				t.Errorf("%d acknowledged, want 2", n)
			}
			lost, foreign := l.Check(tt.found)
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
	l := NewJournal()
	l.Note(Key{Name: "a"}, "f", Mark{Counter: 1, Attempt: "x"}, Broken)
	if lost, foreign := l.Check(nil); len(lost)+len(foreign) > 0 {
		t.Errorf("lost %q, foreign %q: nobody was told that it was written", lost, foreign)
	}
}

func TestJournalConfirm(t *testing.T) {
	key := Key{Resource: gadgets, Name: "a"}
	for _, tt := range []struct {
		name    string
		outcome Outcome
		foreign string
	}{
		{"a doubtful write was carried out", Broken, ""},
		{"a refused write was carried out", Unavailable, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewJournal()
			m := Mark{Counter: 1, Attempt: "x", Via: "server-1"}
			l.Note(key, "f", m, tt.outcome)
			l.Confirm(key, "f", m)
			// A later write must not hide what was seen.
			m = Mark{Counter: 2, Attempt: "y", Via: "server-1"}
			l.Note(key, "f", m, Acknowledged)
			_, foreign := l.Check(map[Key]Stored{key: {Mark: m, Filler: "f"}})
			assertOne(t, "foreign", foreign, tt.foreign)
			if n, _, _ := l.Counts(); n != 2 {
				t.Errorf("%d acknowledged, want 2", n)
			}
		})
	}
}
