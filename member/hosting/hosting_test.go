package hosting

import (
	"errors"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

func TestOrphans(t *testing.T) {
	lease := func(name, local string) coordinationv1.Lease {
		l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if local != "" {
			l.Annotations = map[string]string{storageversion.LocalIdentityAnnotation: local}
		}
		return l
	}
	leases := []coordinationv1.Lease{lease("h3", "c"), lease("h1", "a"), lease("h2", "b"), lease("h4", "")}
	if got, want := orphans(leases, sets.New[agree.ServerID]("b")), []agree.ServerID{"h1", "h3", "h4"}; !slices.Equal(got, want) {
		t.Errorf("orphans are %v, want %v", got, want)
	}
}

// TestTenure: what is known of the host counts for one registration only, and not for the next.
func TestTenure(t *testing.T) {
	unknown := errors.New("it does not answer")
	for _, test := range []struct {
		name   string
		tenure tenure
		id     agree.ServerID
		want   error
	}{
		{"alone", tenure{id: "a", alone: servesNone}, "a", nil},
		{"alone, and registered anew", tenure{id: "a", alone: servesNone}, "b", errHostUnknown},
		{"not registered", tenure{}, "", errHostUnknown},
		{"not known yet", tenure{id: "a", err: unknown}, "a", unknown},
		{"was alone when it last answered", tenure{id: "a", alone: servesNone, err: unknown}, "a", nil},
	} {
		if err := test.tenure.reported(t.Context(), test.id, schema.GroupResource{Group: "example.com", Resource: "things"}, "example.com/v1"); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// TestAfter: a host that served no StorageVersions, serves some now, and does not say whose they are, counts as
// unknown. Everything else that was known stays until the host answers.
func TestAfter(t *testing.T) {
	unknown := errors.New("forbidden")
	for _, test := range []struct {
		name   string
		before string
		found  finding
		want   string
	}{
		{"none served", "", finding{alone: servesNone}, servesNone},
		{"ours", servesNone, finding{served: true}, ""},
		{"others', in place of none", servesNone, finding{served: true, alone: servesOthers}, servesOthers},
		{"no answer, after none", servesNone, finding{err: unknown}, servesNone},
		{"whose is not said, after none", servesNone, finding{served: true, err: unknown}, ""},
		{"whose is not said, after others'", servesOthers, finding{served: true, err: unknown}, servesOthers},
		{"no answer, never known", "", finding{err: unknown}, ""},
	} {
		got := tenure{id: "a", alone: test.before}.after(test.found)
		if got.alone != test.want || !errors.Is(got.err, test.found.err) {
			t.Errorf("%s: alone %q, %v; want %q", test.name, got.alone, got.err, test.want)
		}
	}
}
