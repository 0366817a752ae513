package load_test

import (
	"slices"
	"testing"

	"github.com/concord-dev/concord/testbed/load"
)

func TestDiffer(t *testing.T) {
	result := load.ChurnResult{
		Want:  map[string]string{"ns/same": "1", "ns/changed": "2", "ns/lost": "3"},
		Wrong: []string{"update a: no outcome"},
	}
	found := map[string]string{"ns/same": "1", "ns/changed": "x", "ns/back": "4"}
	want := []string{"update a: no outcome", "ns/changed has another content", "ns/lost is lost", "ns/back is back, or nobody made it"}
	if got := result.Differ(found); !slices.Equal(got, want) {
		t.Errorf("differences are %q, want %q", got, want)
	}
}
