package dashboard

import (
	"testing"

	"golang.org/x/tools/txtar"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"sigs.k8s.io/yaml"

	"fmt"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/verdict"
)

// story returns the observations of a story of package status.
func story(t testing.TB, name string) status.Observed {
	t.Helper()
	archive, err := txtar.ParseFile("../status/testdata/" + name + ".txtar")
	if err != nil || archive.Files[0].Name != "observed.yaml" {
		t.Fatalf("%s: %v", name, err)
	}
	var o status.Observed
	if err := yaml.UnmarshalStrict(archive.Files[0].Data, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestReleases: the neighbours of the releases that serve are judged by what is stored.
func TestReleases(t *testing.T) {
	p, rows := pictureOf(story(t, "roll"), verdict.Lifecycles())
	if len(rows) != 3 || len(p.Problems) == 0 || len(p.Releases) != 2 {
		t.Fatalf("%d rows, %d problems, %+v", len(rows), len(p.Problems), p.Releases)
	}
	for i, want := range []string{"1.38", "1.35"} {
		if p.Releases[i].Release != want || p.Releases[i].Back != (i == 1) {
			t.Errorf("the neighbours are %+v", p.Releases)
		}
	}
	back := p.Releases[1]
	if back.Verdict != "unsafe" || back.NotSafe != 2 || back.Resources[0].Resource != "mutatingadmissionpolicies.admissionregistration.k8s.io" {
		t.Errorf("1.35, which does not know admissionregistration.k8s.io/v1 of these, is judged %+v", back)
	}
	p, _ = pictureOf(story(t, "stock-cluster"), verdict.Lifecycles())
	if p.Releases[0].NotSafe == 0 || p.Releases[0].Verdict != "could not tell" || p.Releases[0].Do == "" {
		t.Errorf("where stored sets are not known the verdict is %+v", p.Releases[0])
	}
	if p, _ = pictureOf(story(t, "nothing"), verdict.Lifecycles()); len(p.Releases) != 0 {
		t.Errorf("of nothing there is a verdict %+v", p.Releases)
	}
}

// BenchmarkPicture: the cost of 10,000 resources whenever something changes.
//
//	go test ./dashboard -run '^$' -bench Picture
func BenchmarkPicture(b *testing.B) {
	o := story(b, "well")
	sv, state := o.StorageVersions[0], o.States[0]
	o.StorageVersions, o.States = []apiserverinternalv1alpha1.StorageVersion{}, []migrationv1alpha1.StorageState{}
	for i := range 10000 {
		sv.Name, state.Name = fmt.Sprintf("example.com.things%d", i), fmt.Sprintf("things%d.example.com", i)
		state.Spec.Resource = migrationv1alpha1.GroupResource{Group: "example.com", Resource: fmt.Sprintf("things%d", i)}
		o.StorageVersions, o.States = append(o.StorageVersions, sv), append(o.States, state)
	}
	lifecycles := verdict.Lifecycles()
	for b.Loop() {
		_, rows := pictureOf(o, lifecycles)
		if _, order, err := encoded(rows); err != nil || len(order) < 10000 {
			b.Fatalf("%d rows, %v", len(order), err)
		}
	}
}
