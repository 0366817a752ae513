package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/status"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

func wantText(t *testing.T, got, want string) {
	t.Helper()
	if got != strings.TrimPrefix(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	wantNarrow(t, got)
}

// TestCensusTable: resources that are stored in another encoding than the agreed one come first,
// and empty resources are only counted.
func TestCensusTable(t *testing.T) {
	wantText(t, censusTable([]census.Resource{
		{Resource: "configmaps", Encoding: "v1", Rows: []census.Row{{Encoding: "v1", Objects: 5, Bytes: 900}}},
		{Resource: "secrets", Encoding: "v1"},
		{Resource: "widgets.example.com", Encoding: "example.com/v2", Rows: []census.Row{{Encoding: "example.com/v1", Objects: 3, Bytes: 600}, {Encoding: "example.com/v2", Objects: 4997, Bytes: 1000000}}},
	}, []string{"pods.metrics.k8s.io is stored elsewhere, by another API server"}), `
widgets.example.com
          3 objects           600 bytes  example.com/v1  (not as agreed)
       4997 objects       1000000 bytes  example.com/v2
configmaps
          5 objects           900 bytes  v1
nothing is stored of 1 resources
pods.metrics.k8s.io is stored elsewhere, by another API server
`)
}

// TestKeys: a key that stored objects or servers need comes before one that is not needed any more.
func TestKeys(t *testing.T) {
	state := func(name, current string, needs, unneeded []string) migrationv1alpha1.StorageState {
		s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Status.Encryption = &migrationv1alpha1.StorageEncryption{CurrentKey: current, StoredKeys: needs, RemovableKeys: unneeded}
		return s
	}
	wantText(t, keysText(keysOf([]migrationv1alpha1.StorageState{
		state("secrets", "aescbc:v1:key2:b", []string{"aescbc:v1:key2:b"}, []string{"aescbc:v1:key1:a"}),
		state("widgets.example.com", "aescbc:v1:key2:b", []string{"aescbc:v1:key2:b", "identity"}, nil),
		{},
	})), `
aescbc:v1:key2:b
  encrypts secrets, widgets.example.com
  may be needed by secrets, widgets.example.com
identity
  may be needed by widgets.example.com
aescbc:v1:key1:a
  nothing needs it any more; prove that with concord keys before destroying it
`)
	wantText(t, keysText(keysOf([]migrationv1alpha1.StorageState{
		state("secrets", "aescbc:v1:key1:a", nil, []string{"identity"}),
	})), `
aescbc:v1:key1:a
  encrypts secrets
identity
  nothing needs it any more; prove that with concord keys before taking it out
  of the configuration
`)
	wantText(t, keysText(keysOf([]migrationv1alpha1.StorageState{
		state("secrets", migrationv1alpha1.Unknown, []string{"aescbc:v1:key1:a", migrationv1alpha1.Unknown}, nil),
		state("widgets.example.com", migrationv1alpha1.Unknown, []string{"aescbc:v1:key1:a"}, nil),
	})), `
aescbc:v1:key1:a
  may be needed by secrets, widgets.example.com
servers encrypt these with different keys, or do not agree on their version
  secrets, widgets.example.com
objects may need keys that nobody remembers
  secrets
`)
	var all []migrationv1alpha1.StorageState
	for i := range 60 {
		all = append(all, state(fmt.Sprintf("resources-%02d.example.com", i), "aescbc:v1:key2:b", nil, nil))
	}
	wantNarrow(t, keysText(keysOf(all)))
	wantText(t, keysText(nil), "nothing is encrypted, as far as is remembered\n")
}

// TestHistoryTable: the newest migration comes first, with the encodings before and after, and the
// objects that failed.
func TestHistoryTable(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC))
	wantText(t, historyTable(widgets, []migrationv1alpha1.Past{
		{Result: "Succeeded", Objects: 5000, From: []string{"example.com/v1+aescbc:v1:k:1"}, To: "example.com/v2+aescbc:v1:k:1", Made: "concord-migrate", User: "alice", Began: at, Ended: metav1.NewTime(at.Add(12 * time.Second))},
		{Result: "Failed", Reason: "ObjectsFailed", Objects: 4999, Failed: 1, Failures: []string{"default/torn"}, To: "example.com/v2", Began: at, Ended: at},
		{Result: "Superseded", Reason: "CustomResourceDefinitionChanged", To: "example.com/v2", Began: at, Ended: at},
	}), `
ENDED (UTC)          RESULT      OBJECTS  FAILED  TOOK  ASKED FOR BY
2026-11-24 10:00:12  Succeeded   5000     0       12s   concord-migrate
  from example.com/v1 to example.com/v2
  user alice
2026-11-24 10:00:00  Failed      4999     1       <1s   -
  to example.com/v2
  ObjectsFailed: default/torn
2026-11-24 10:00:00  Superseded  0        0       <1s   -
  to example.com/v2
  CustomResourceDefinitionChanged
`)
	wantText(t, historyTable(widgets, []migrationv1alpha1.Past{
		{Result: "Succeeded", From: []string{"example.com/v1", "example.com/v2+aescbc:v1:k1:1"}, To: "example.com/v2+aescbc:v1:k2:2", Began: at, Ended: at},
	}), `
ENDED (UTC)          RESULT     OBJECTS  FAILED  TOOK  ASKED FOR BY
2026-11-24 10:00:00  Succeeded  0        0       <1s   -
  from example.com/v1, example.com/v2+aescbc:v1:k1:1 to
  example.com/v2+aescbc:v1:k2:2
`)
	long := migrationv1alpha1.Past{Result: "Failed", Reason: "ObjectsFailed", From: []string{"admissionregistration.k8s.io/v1alpha1", "admissionregistration.k8s.io/v1beta1"}, To: "admissionregistration.k8s.io/v1", Began: at, Ended: at}
	for i := range 10 {
		long.Failures = append(long.Failures, fmt.Sprintf("default/an-object-with-a-rather-long-name-%d", i))
	}
	wantNarrow(t, historyTable(widgets, []migrationv1alpha1.Past{long}))
	wantText(t, historyTable(widgets, nil), "widgets.example.com: no migration that has ended is remembered\n")
}

// TestPastOf: a migration that has just ended is shown with the encodings of the objects before it,
// also while the history in the StorageState does not have it yet.
func TestPastOf(t *testing.T) {
	m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: widgets.Group, Resource: widgets.Resource}
	migrationv1alpha1.SetTarget(&m, evolve.Target{Ref: evolve.Ref{UID: "v", Epoch: 2}, Encoding: "example.com/v2"})
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationSucceeded, Status: corev1.ConditionTrue}}
	state := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: migrationv1alpha1.StateName(widgets)}}
	state.Status.PersistedEncodings, state.Status.PersistedStorageVersionHashes = []string{"example.com/v1", "example.com/v2"}, []string{"a", "b"}
	past := pastOf(status.Observed{States: []migrationv1alpha1.StorageState{state}, Migrations: []migrationv1alpha1.StorageVersionMigration{m}}, widgets)
	if len(past) != 1 || !slices.Equal(past[0].From, []string{"example.com/v1"}) || past[0].To != "example.com/v2" {
		t.Errorf("told is %+v", past)
	}
}

// TestPlanOf: a revert leads to the version that is named, or is refused with the reason.
func TestPlanOf(t *testing.T) {
	observed := func(hold string, versions ...string) status.Observed {
		crd := apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: widgets.String(), Annotations: map[string]string{migrationv1alpha1.HoldAnnotation: hold}}}
		crd.Spec.Group, crd.Spec.Names.Plural = widgets.Group, widgets.Resource
		for _, v := range versions {
			crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Storage: v == "v3"})
		}
		return status.Observed{CRDs: []apiextensionsv1.CustomResourceDefinition{crd}}
	}
	for name, test := range map[string]struct {
		o       status.Observed
		to, err string
	}{
		"one that is named":  {o: observed("false", "v1", "v2", "v3"), to: "v1"},
		"only one version":   {o: observed("false", "v3"), err: "has no version but v3"},
		"none is named":      {o: observed("false", "v1", "v2", "v3"), err: "one of v1, v2, by --to"},
		"it never was":       {o: observed("false", "v1", "v3"), to: "v9", err: "has no version v9, only v1, v3"},
		"it is stored so":    {o: observed("false", "v1", "v3"), to: "v3", err: "is stored in v3 already"},
		"on hold":            {o: observed("true", "v2", "v3"), to: "v2", err: "kubectl annotate crd widgets.example.com concord.dev/hold-"},
		"no custom resource": {o: status.Observed{}, err: "has no CustomResourceDefinition"},
	} {
		way, err := planOf(test.o, widgets, test.to)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %+v, %v; want %q", name, way, err, test.err)
			}
			continue
		}
		if err != nil || way.to != test.to || way.from != "v3" {
			t.Errorf("%s: %+v, %v; want %s", name, way, err, test.to)
		}
	}
}

// TestRateOf: a rate is a number of objects per second, or "none".
func TestRateOf(t *testing.T) {
	for text, want := range map[string]int64{"200": 200, "200/s": 200, "none": 0} {
		if got, err := rateOf(text); err != nil || got != want {
			t.Errorf("%s is %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "fast", "1.5"} {
		if got, err := rateOf(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// wantNarrow fails if a line has more columns than a plain terminal.
func wantNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > plainWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
}

// TestChosen: a census of raw etcd that finds nothing under a name says so, and which name may be
// meant.
func TestChosen(t *testing.T) {
	rows := []migratestore.Row{
		{Resource: "recs.ex.com", Encoding: "ex.com/v1", Objects: 20}, {Resource: "recs.ex.com", Encoding: "ex.com/v2", Objects: 10},
		{Resource: "records.ex.com", Encoding: "ex.com/v1", Objects: 1}, {Resource: "secrets", Encoding: "v1", Objects: 1},
	}
	for _, test := range []struct {
		name, refused string
		want          int
	}{
		{"", "", 4},
		{"recs.ex.com", "", 2},
		{"recs", `nothing is stored as "recs"; give the whole name: recs.ex.com`, 0},
		{"rec", `nothing is stored as "rec"; give the whole name: recs.ex.com, records.ex.com`, 0},
		{"nonsense", `nothing is stored as "nonsense"; without a name the census has all of the 3 resources`, 0},
	} {
		got, err := chosen(rows, strings.Fields(test.name))
		if len(got) != test.want || (err == nil) != (test.refused == "") || err != nil && !strings.HasPrefix(err.Error(), test.refused) {
			t.Errorf("%q: %v, %v", test.name, got, err)
		}
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
