package verdict_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

const admission = "admissionregistration.k8s.io"

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// report returns the report of a rollback to 1.35, with a resource for each verdict.
func report() verdict.Report {
	target := compat.ReleaseTarget(verdict.Lifecycles(), version.MustParseMajorMinor("1.35"))
	return verdict.OfServer(target, []compat.Stored{
		{Resource: schema.GroupResource{Resource: "configmaps"}, Encodings: []string{"v1"}},
		{Resource: schema.GroupResource{Resource: "secrets"}, Unknown: true, Why: "its stored set says Unknown"},
		{
			Resource: schema.GroupResource{Group: admission, Resource: "mutatingadmissionpolicies"},
			Census: &compat.StoredCensus{
				Objects: map[string]int64{admission + "/v1": 12, admission + "/v1beta1": 1},
				First:   map[string][]string{admission + "/v1": {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}},
			},
		},
	}).Warned([]verdict.Warning{
		{Resource: "services", Object: "default/1st", About: "its name, which has to begin with a letter in 1.35"},
		{Resource: "customresourcedefinitions.apiextensions.k8s.io", Object: "widgets.example.com", About: "CEL expressions with includes, which is newer than 1.35"},
	}, errors.New("deviceclasses.resource.k8s.io: nobody may"))
}

// TestFormats: the reports in all formats are those of the golden files.
func TestFormats(t *testing.T) {
	for _, format := range verdict.Formats {
		var text strings.Builder
		if err := report().Write(&text, format, false); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "report."+format)
		if *update {
			if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text.String() != string(want) {
			t.Errorf("%s is\n%s\nwant\n%s", format, text.String(), want)
		}
		switch format {
		case "json", "sarif":
			if !json.Valid(want) {
				t.Errorf("%s is no JSON", format)
			}
		case "text":
			for _, line := range strings.Split(text.String(), "\n") {
				if len(line) > 80 {
					t.Errorf("a line of %d columns: %s", len(line), line)
				}
			}
		}
	}
	if err := report().Err(); err == nil || !strings.HasPrefix(err.Error(), "unsafe: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("it ends with %v", err)
	}
}

// TestDefinitions: the verdict says whether a definition may be applied.
func TestDefinitions(t *testing.T) {
	both := &verdict.Definition{Resource: widgets, Versions: []string{"v1", "v2"}, Storage: "v1", StoredVersions: []string{"v1"}}
	migrated := &verdict.Definition{Resource: widgets, Versions: []string{"v1", "v2"}, Storage: "v2", StoredVersions: []string{"v2"}}
	unpruned := &verdict.Definition{Resource: widgets, Versions: []string{"v1", "v2"}, Storage: "v2", StoredVersions: []string{"v1", "v2"}}
	moved := &verdict.Definition{Resource: widgets, Versions: []string{"v1", "v2"}, Storage: "v2"}
	only2 := &verdict.Definition{Resource: widgets, Versions: []string{"v2"}, Storage: "v2"}
	census := func(v1, v2 int64) *compat.StoredCensus {
		c := &compat.StoredCensus{Objects: map[string]int64{}, First: map[string][]string{"example.com/v1": {"default/a"}}}
		for encoding, n := range map[string]int64{"example.com/v1": v1, "example.com/v2": v2} {
			if n > 0 {
				c.Objects[encoding] = n
			}
		}
		return c
	}
	for name, test := range map[string]struct {
		wanted, present *verdict.Definition
		stored          []string
		unknown         bool
		census          *compat.StoredCensus
		want            compat.Safety
		reason          string
	}{
		"new":                              {only2, nil, nil, false, nil, compat.Safe, "there is no such definition yet; objects that an earlier one has left were not looked for"},
		"as it is":                         {both, both, []string{"example.com/v1"}, false, census(3, 0), compat.Safe, "it keeps every version that is stored"},
		"the storage version moves":        {moved, both, []string{"example.com/v1"}, false, census(3, 0), compat.Safe, "the storage version moves from v1 to v2"},
		"drops what is stored":             {only2, both, []string{"example.com/v1"}, false, census(3, 5), compat.Unsafe, "it drops example.com/v1, in which objects are stored (3)"},
		"drops what may be stored":         {only2, both, []string{"example.com/v1"}, false, nil, compat.Unsafe, "it drops example.com/v1, in which objects may be stored"},
		"drops what is migrated":           {only2, migrated, []string{"example.com/v2"}, false, census(0, 5), compat.Safe, "it keeps"},
		"drops what is migrated, by count": {only2, migrated, []string{"example.com/v1"}, true, census(0, 5), compat.Safe, "it keeps"},
		"drops what is not pruned":         {only2, unpruned, []string{"example.com/v2"}, false, census(0, 5), compat.Unsafe, "which status.storedVersions lists: the API server refuses it"},
		"nobody knows":                     {only2, &verdict.Definition{Resource: widgets, Versions: []string{"v2"}, Storage: "v2"}, nil, true, nil, compat.CouldNotTell, "raw values were not read"},

		"new, over objects that are left":    {only2, nil, nil, false, census(1, 0), compat.Unsafe, "it drops example.com/v1, in which objects are stored (1)"},
		"new, over what was stored before":   {only2, nil, []string{"example.com/v1"}, true, nil, compat.Unsafe, "it drops example.com/v1, in which objects may be stored"},
		"new, over what it can read":         {only2, nil, []string{"example.com/v2"}, true, nil, compat.CouldNotTell, "raw values were not read"},
		"new, where nobody reports":          {only2, nil, nil, true, nil, compat.Safe, "there is no such definition yet; objects that"},
		"new, over objects that it can read": {only2, nil, nil, false, census(0, 1), compat.Safe, "it keeps every version that is stored"},
	} {
		change := verdict.Change{Wanted: test.wanted, Present: test.present, Stored: compat.Stored{Resource: widgets, Encodings: test.stored, Unknown: test.unknown, Census: test.census}}
		r := verdict.OfDefinitions([]verdict.Change{change})
		if r.Verdict != test.want || len(r.Resources) != 1 || !strings.Contains(r.Resources[0].Reason, test.reason) {
			t.Errorf("%s: %s, %+v; want %s, %q", name, r.Verdict, r.Resources, test.want, test.reason)
		}
		if (r.Do == "") != (r.Verdict == compat.Safe) {
			t.Errorf("%s: what to do is %q", name, r.Do)
		}
	}
}

// TestNewDefinition: where no definition is present and nobody counted, text and SARIF say beside "safe" that objects
// which an earlier definition has left were not looked for.
func TestNewDefinition(t *testing.T) {
	const told = "Objects that an earlier definition of widgets.example.com may have left in etcd were not looked for: "
	for census, want := range map[*compat.StoredCensus]bool{nil: true, {}: false} {
		change := verdict.Change{Wanted: &verdict.Definition{Resource: widgets, Versions: []string{"v2"}, Storage: "v2"}, Stored: compat.Stored{Resource: widgets, Census: census}}
		r := verdict.OfDefinitions([]verdict.Change{change, change})
		if r.Verdict != compat.Safe || strings.Contains(r.Resources[0].Reason, "not looked for") != want {
			t.Errorf("with the census %v the report is %+v", census, r)
		}
		for _, format := range []string{"text", "sarif"} {
			var text strings.Builder
			if err := r.Write(&text, format, false); err != nil || strings.Contains(strings.ReplaceAll(text.String(), "\n", " "), told) != want {
				t.Errorf("%s with the census %v is, %v,\n%s", format, census, err, text.String())
			}
		}
	}
}

// TestWays: the advice goes by what makes each resource unsafe.
func TestWays(t *testing.T) {
	const flag, choose = "run the servers with --min-compatibility-version=1.35, so that they store what 1.35 reads, and wait until the migrations are done", "choose versions whose storage it reads"
	policies := func(encodings ...string) compat.Stored {
		s := compat.Stored{Resource: schema.GroupResource{Group: admission, Resource: "mutatingadmissionpolicies"}, Census: &compat.StoredCensus{Objects: map[string]int64{}}}
		for _, e := range encodings {
			s.Census.Objects[admission+"/"+e] = 1
		}
		return s
	}
	reported := policies()
	reported.Reported = []string{admission + "/v1"}
	sealed := reported
	sealed.Census = &compat.StoredCensus{Encrypted: 1}
	custom := func(gr schema.GroupResource) compat.Stored {
		return compat.Stored{Resource: gr, Encodings: []string{"example.com/v1", "example.com/v3"}, CRD: &compat.StoredCRD{Versions: []string{"example.com/v3"}}}
	}
	gears := custom(schema.GroupResource{Group: "example.com", Resource: "gears"})
	for name, test := range map[string]struct {
		release    string
		stored     []compat.Stored
		reason, do string
	}{
		"stored in what is newer":       {"1.35", []compat.Stored{policies("v1")}, "1.35 cannot decode " + admission + "/v1 (introduced in 1.36; 1 stored)", flag},
		"written, and none stored":      {"1.35", []compat.Stored{reported}, "1.35 cannot decode " + admission + "/v1 (introduced in 1.36; none stored, but servers write it)", flag},
		"written, and values encrypted": {"1.35", []compat.Stored{sealed}, "1.35 cannot decode " + admission + "/v1 (introduced in 1.36)", flag},
		"stored in what no release has": {"1.35", []compat.Stored{policies("v9")}, "1.35 cannot decode " + admission + "/v9 (no release is known to have it; 1 stored)", choose + " (concord apis tells) and wait until the migrations are done"},
		"no value of the flag":          {"1.33", []compat.Stored{{Resource: schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, Encodings: []string{"resource.k8s.io/v1"}}}, "1.33 cannot decode resource.k8s.io/v1 (introduced in 1.34)", choose + " (concord apis tells) and wait until the migrations are done"},
		"no release leads on":           {"1.35", []compat.Stored{{Resource: schema.GroupResource{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"}, Encodings: []string{"storagemigration.k8s.io/v1alpha1"}}, policies("v9")}, "1.35 cannot decode storagemigration.k8s.io/v1alpha1 (removed in 1.35)", choose + " (concord apis tells) and wait until the migrations are done; no release migrates objects in storagemigration.k8s.io/v1alpha1 to a version that 1.35 reads: delete them, through a server that serves them or in etcd (docs/faults.md)"},
		"a definition lacks a version":  {"1.35", []compat.Stored{custom(widgets)}, "its CustomResourceDefinition cannot decode example.com/v1 (not among its versions)", "put example.com/v1 back into spec.versions of the CustomResourceDefinition widgets.example.com (served: false and storage: false will do)"},
		"two lack one, and another":     {"1.35", []compat.Stored{custom(widgets), gears, policies("v1")}, "its CustomResourceDefinition cannot", flag + "; put what they lack back into spec.versions of the CustomResourceDefinitions widgets.example.com, gears.example.com (served: false and storage: false will do)"},
	} {
		r := verdict.OfServer(compat.ReleaseTarget(verdict.Lifecycles(), version.MustParseMajorMinor(test.release)), test.stored)
		slices.SortFunc(r.Resources, func(a, b compat.Finding) int { return strings.Compare(b.Reason, a.Reason) })
		if r.Verdict != compat.Unsafe || !strings.HasPrefix(r.Resources[0].Reason, test.reason) || r.Do != test.do {
			t.Errorf("%s: %s, %q; what to do is\n%s\nwant %q,\n%s", name, r.Verdict, r.Resources[0].Reason, r.Do, test.reason, test.do)
		}
	}
}

// TestEvidence: for each resource, the migration that ended last counts.
func TestEvidence(t *testing.T) {
	migration := func(name string, hour int, succeeded bool) migrationv1alpha1.StorageVersionMigration {
		m := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: widgets.Group, Resource: widgets.Resource}
		m.Status.Failures = []migrationv1alpha1.MigrationFailure{
			{Namespace: "default", Name: "torn", Reason: migrationv1alpha1.FailureDoesNotDecode}, {Name: "big", Reason: migrationv1alpha1.FailureTooLarge},
		}
		ended := metav1.Date(2026, 11, 24, hour, 0, 0, 0, metav1.Now().Location())
		if succeeded {
			m.Status.Failures = nil
			migrationv1alpha1.SetCondition(&m, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, "", ended)
		} else {
			migrationv1alpha1.SetCondition(&m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, "", ended)
		}
		return m
	}
	failed := verdict.Evidence([]migrationv1alpha1.StorageVersionMigration{migration("a", 1, true), migration("b", 2, false)})
	if got := failed[widgets]; got.Objects != 1 || len(got.First) != 1 || got.First[0] != "default/torn" {
		t.Errorf("evidence of what failed last: %+v", failed)
	}
	if later := verdict.Evidence([]migrationv1alpha1.StorageVersionMigration{migration("b", 2, false), migration("c", 3, true)}); len(later) != 0 {
		t.Errorf("evidence of what succeeded since: %+v", later)
	}
	// The time of an end is in whole seconds, so it is not known which of these ended last.
	same := []migrationv1alpha1.StorageVersionMigration{migration("a", 2, true), migration("b", 2, false)}
	for range 2 {
		if got := verdict.Evidence(same)[widgets]; got.Objects != 1 {
			t.Errorf("of what ended in one second the evidence is %+v", got)
		}
		slices.Reverse(same)
	}
}

// TestAlike: if many resources have the verdict "could not tell" for the same reason, that is told once.
func TestAlike(t *testing.T) {
	var stored []compat.Stored
	for _, name := range []string{"configmaps", "endpoints", "events", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods", "replicationcontrollers", "resourcequotas", "secrets", "serviceaccounts"} {
		stored = append(stored, compat.Stored{Resource: schema.GroupResource{Resource: name}, Encodings: []string{"v1"}, Unknown: true})
	}
	report := verdict.OfServer(compat.ReleaseTarget(verdict.Lifecycles(), version.MustParseMajorMinor("1.36")), stored)
	text := report.Text(false)
	if err := report.Err(); err == nil || !strings.HasPrefix(err.Error(), "could not tell about configmaps and 11 more of 12 resources: ") {
		t.Errorf("the error repeats the list: %v", err)
	}
	const want = "12 resources: could not tell\n  its stored set says Unknown, and raw values were not read\n  configmaps, endpoints, "
	if !strings.Contains(text, want) || !strings.Contains(text, "resourcequotas and 2 more\n") || strings.Contains(text, "stored as") {
		t.Errorf("it says\n%s", text)
	}
}

// TestUnseen: if nothing is known of a resource and it could not be counted, every format says that beside
// the verdict "safe".
func TestUnseen(t *testing.T) {
	target := compat.ReleaseTarget(verdict.Lifecycles(), version.MajorMinor(1, 38))
	r := verdict.OfServer(target, []compat.Stored{
		{Resource: schema.GroupResource{Resource: "configmaps"}, Encodings: []string{"v1"}},
		{Resource: schema.GroupResource{Resource: "secrets"}, Encodings: []string{"v1"}, Census: &compat.StoredCensus{}},
		{Resource: schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, Why: "no server of this cluster has reported that it stores it"},
		{Resource: schema.GroupResource{Resource: "pods"}, Why: "no server of this cluster has reported that it stores it", Storeless: true},
	})
	if r.Verdict != compat.Safe || r.Remembered != 1 || r.Unseen != 1 {
		t.Errorf("the report is %+v", r)
	}
	for format, want := range map[string]string{
		"text":  "Of 1 of 4 resources nothing is remembered, and nobody has looked\nat raw values.",
		"json":  `"unseen": 1`,
		"sarif": "Of 1 of 4 resources nothing is remembered, and nobody has looked at raw values.",
	} {
		var text strings.Builder
		if err := r.Write(&text, format, false); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%s is, %v,\n%s\nwant %q", format, err, text.String(), want)
		}
	}
	if !strings.HasSuffix(r.Resources[2].Reason, "; raw values were not read") || strings.Contains(r.Resources[1].Reason, "raw values") {
		t.Errorf("the findings are %+v", r.Resources)
	}
}

// TestAggregated: the objects of an aggregated API server are in another etcd, so it does not matter which
// releases can decode them, also if that server is gone. A resource with a CRD here is judged, whoever
// reports it.
func TestAggregated(t *testing.T) {
	state := migrationv1alpha1.StorageState{}
	state.Name = widgets.String()
	sv := apiserverinternalv1alpha1.StorageVersion{}
	sv.Name, sv.Labels = storageversion.Name(widgets), map[string]string{storageversion.AggregatedLabel: "5a1c"}
	left := *state.DeepCopy()
	left.Annotations = map[string]string{migrationv1alpha1.AggregatedAnnotation: "true"}
	target := compat.ReleaseTarget(verdict.Lifecycles(), version.MajorMinor(1, 38))
	for name, test := range map[string]struct {
		cluster verdict.Cluster
		want    compat.Safety
	}{
		"reports":          {verdict.Cluster{States: []migrationv1alpha1.StorageState{state}, Versions: []apiserverinternalv1alpha1.StorageVersion{sv}}, compat.Safe},
		"is gone":          {verdict.Cluster{States: []migrationv1alpha1.StorageState{left}}, compat.Safe},
		"is no such":       {verdict.Cluster{States: []migrationv1alpha1.StorageState{state}}, compat.CouldNotTell},
		"has a definition": {verdict.Cluster{States: []migrationv1alpha1.StorageState{left}, Definitions: map[schema.GroupResource]*verdict.Definition{widgets: nil}}, compat.CouldNotTell},
	} {
		if r := verdict.OfServer(target, test.cluster.Stored(nil)); r.Verdict != test.want {
			t.Errorf("a server that %s: %+v", name, r)
		}
	}
}

// TestStockCluster: if no server reports, it does not help to wait for migrations, and that is not advised.
func TestStockCluster(t *testing.T) {
	state := migrationv1alpha1.StorageState{}
	state.Name = "widgets.example.com"
	state.Status.PersistedEncodings, state.Status.PersistedStorageVersionHashes = []string{"example.com/v1"}, []string{"h"}
	target := compat.ReleaseTarget(verdict.Lifecycles(), version.MajorMinor(1, 38))
	r := verdict.OfServer(target, verdict.Cluster{States: []migrationv1alpha1.StorageState{state}}.Stored([]schema.GroupResource{widgets}))
	if r.Verdict != compat.CouldNotTell || strings.Contains(r.Do, "wait") || !strings.Contains(r.Do, "--etcd-servers") || !strings.Contains(r.Resources[0].Reason, "no server of this cluster reports") {
		t.Errorf("the verdict is %+v", r)
	}
}

// TestMixedControlPlane: in a cluster with servers of Concord and a stock kube-apiserver, the advice is not
// to wait, and not to read values again that were read.
func TestMixedControlPlane(t *testing.T) {
	concord := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "apiserver-a", Annotations: map[string]string{storageversion.BinaryVersionAnnotation: "1.37"}}}
	stock := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "apiserver-b"}}
	state := migrationv1alpha1.StorageState{}
	state.Name = widgets.String()
	asked := verdict.Cluster{States: []migrationv1alpha1.StorageState{state}, Leases: []coordinationv1.Lease{concord, stock}, Unserved: true}.Stored([]schema.GroupResource{widgets})
	counted := &compat.StoredCensus{Objects: map[string]int64{"v1": 1}}
	secrets := compat.Stored{Resource: schema.GroupResource{Resource: "secrets"}, Reported: []string{"v1", "Unknown"}, Census: counted}
	sealed := compat.Stored{Resource: secrets.Resource, Unknown: true, Census: &compat.StoredCensus{Encrypted: 1}}
	uncounted := compat.Stored{Resource: secrets.Resource, Unknown: true}
	gears := compat.Stored{Resource: schema.GroupResource{Resource: "gears"}, Census: counted}
	const read, wait, silent = "let raw values be read", "wait", "replace the kube-apiserver that reports nothing or, if it is gone for good, delete its Lease"
	for name, test := range map[string]struct {
		stored   compat.Stored
		do, dont []string
	}{
		"a stock server was asked":             {asked[0], []string{"ask a kube-apiserver of Concord"}, []string{read, wait, silent}},
		"one of Concord's, or etcd, was asked": {secrets, []string{silent}, []string{read, wait}},
		"nobody counted":                       {uncounted, []string{read, wait}, []string{silent}},
		"encrypted values in etcd":             {sealed, []string{"which has the keys"}, []string{read, wait, silent}},
		"a lifecycle that nobody knows":        {gears, []string{wait}, []string{read, silent}},
	} {
		r := verdict.OfServer(compat.ReleaseTarget(verdict.Lifecycles(), version.MajorMinor(1, 38)), []compat.Stored{test.stored})
		if r.Verdict != compat.CouldNotTell {
			t.Errorf("%s: the verdict is %+v", name, r)
		}
		for _, text := range test.do {
			if !strings.Contains(r.Do, text) {
				t.Errorf("%s: it does not advise %q: %s", name, text, r.Do)
			}
		}
		for _, text := range test.dont {
			if strings.Contains(r.Do, text) {
				t.Errorf("%s: it advises %q: %s", name, text, r.Do)
			}
		}
	}
	// A dead server of Concord cannot be asked any more, so the cluster counts as one of stock servers.
	now := time.Now()
	for age, want := range map[time.Duration]string{10 * time.Second: "serves no StorageVersions", time.Minute: "no server of this cluster reports"} {
		renewed := concord.DeepCopy()
		renewed.Spec.RenewTime, renewed.Spec.LeaseDurationSeconds = &metav1.MicroTime{Time: now.Add(-age)}, ptr.To[int32](15)
		c := verdict.Cluster{States: []migrationv1alpha1.StorageState{state}, Leases: []coordinationv1.Lease{*renewed, stock}, Unserved: true, Now: now}
		if got := c.Stored(nil)[0].Why; !strings.Contains(got, want) {
			t.Errorf("of a Lease of 15 s that was renewed %s ago: %s", age, got)
		}
	}
	served := verdict.Cluster{States: []migrationv1alpha1.StorageState{state}, Leases: []coordinationv1.Lease{concord}}
	if got := served.Stored(nil)[0].Why; strings.Contains(got, "serves no StorageVersions") {
		t.Errorf("of a server that serves an empty list: %s", got)
	}
	if reason := asked[0].Why; !strings.Contains(reason, "that answered serves no StorageVersions") {
		t.Errorf("it says that %s", reason)
	}
}
