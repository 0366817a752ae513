package migrating

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

func TestResolve(t *testing.T) {
	stored := []schema.GroupResource{
		{Resource: "configmaps"}, {Resource: "events"}, {Group: "a.example.com", Resource: "widgets"}, {Group: "b.example.com", Resource: "widgets"},
	}
	discovered := func(name string) (schema.GroupResource, error) {
		switch name {
		case "cm":
			return schema.GroupResource{Resource: "configmaps"}, nil
		case "pods":
			return schema.GroupResource{Resource: "pods"}, nil
		case "away":
			return schema.GroupResource{}, errors.New("connection refused")
		}
		return schema.GroupResource{}, &meta.NoResourceMatchError{PartialResource: schema.GroupVersionResource{Resource: name}}
	}
	for name, want := range map[string]string{
		"configmaps": "configmaps", "cm": "configmaps", "widgets.a.example.com": "widgets.a.example.com",
		"widgets": `may be widgets.a.example.com, widgets.b.example.com: give the name with its group`,
		"pods":    `"pods" is no resource that is stored; kubectl get storagestates names`,
		"nothing": `"nothing" is no resource that is stored; kubectl get storagestates names`,
		"away":    `look for "away": connection refused`,
		"":        `the name of a resource is empty`,
	} {
		gr, err := resolve(name, stored, discovered)
		if err == nil && gr.String() != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %s, %v; want %s", name, gr, err, want)
		}
	}
}

// TestServed: the command does not wait for a resource that no server serves, for example after a rollback.
func TestServed(t *testing.T) {
	here, away := schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Group: "example.com", Resource: "gadgets"}
	both, unserved := []schema.GroupResource{here, away}, []schema.GroupResource{away}
	if got, err := (&migrateOptions{}).served(both, unserved); err == nil || !strings.Contains(err.Error(), "no server serves gadgets.example.com now") {
		t.Errorf("it migrates %v, %v", got, err)
	}
	if got, err := (&migrateOptions{all: true}).served(both, unserved); err != nil || len(got) != 1 || got[0] != here {
		t.Errorf("--all migrates %v, %v", got, err)
	}
	if got, err := (&migrateOptions{dryRun: true}).served(both, unserved); err != nil || len(got) != 2 {
		t.Errorf("a dry run tells of %v, %v", got, err)
	}
}

// TestEstimate: the objects in another encoding are those to rewrite, at a rate that was measured, is assumed or
// is the limit.
func TestEstimate(t *testing.T) {
	counted := census.Resource{
		Resource: "widgets.example.com", Encoding: "example.com/v2", ReadSeconds: 3,
		Rows: []census.Row{{Encoding: "example.com/v1", Objects: 1000, Bytes: 5000}, {Encoding: "example.com/v2", Objects: 200, Bytes: 900}, {Encoding: "unknown", Objects: 10, Bytes: 7}},
	}
	for name, test := range map[string]struct {
		change  func(*census.Resource, *migrateOptions)
		rate    float64
		basis   string
		seconds float64
	}{
		"assumed":        {func(*census.Resource, *migrateOptions) {}, assumedPerSecond, "assumed", 3 + 1010./assumedPerSecond},
		"measured":       {func(c *census.Resource, _ *migrateOptions) { c.ObjectsPerSecond = 505 }, 505, "measured", 5},
		"server's bound": {func(c *census.Resource, _ *migrateOptions) { c.MaxObjectsPerSecond = 101 }, 101, "limited", 13},
		"own bound": {func(c *census.Resource, o *migrateOptions) {
			c.MaxObjectsPerSecond, o.maxPerSecond, o.rateSet = 101, 202, true
		}, 202, "limited", 8},
		"no own bound": {func(c *census.Resource, o *migrateOptions) {
			c.ObjectsPerSecond, c.MaxObjectsPerSecond, o.rateSet = 505, 101, true
		}, 505, "measured", 5},
	} {
		c, o := counted, migrateOptions{}
		test.change(&c, &o)
		e := o.of(c)
		if *e.Objects != 1210 || *e.Bytes != 5907 || *e.Rewrite != 1010 || len(e.Encodings) != 3 {
			t.Errorf("%s: counts %+v", name, e)
		}
		if *e.ObjectsPerSecond != test.rate || e.Basis != test.basis || *e.ExpectedSeconds < test.seconds-.001 || *e.ExpectedSeconds > test.seconds+.001 {
			t.Errorf("%s: %f s at %f/s, %s; want %f s at %f/s, %s", name, *e.ExpectedSeconds, *e.ObjectsPerSecond, e.Basis, test.seconds, test.rate, test.basis)
		}
	}
	o := migrateOptions{}
	table := estimateTable([]estimate{o.of(counted), o.of(census.Resource{Resource: "empty"})})
	for _, want := range []string{
		"widgets.example.com\n       1010 to rewrite to example.com/v2, in 4s\n       1000 objects          5000 bytes  example.com/v1\n",
		"objects per second are\nassumed.", "nothing is stored of 1 resources\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	for line := range strings.Lines(table) {
		if len(line) > 81 {
			t.Errorf("a line of %d columns: %s", len(line)-1, line)
		}
	}
}

// TestMigrateView: without a terminal every change is one line, and the first objects that failed are named once.
func TestMigrateView(t *testing.T) {
	a := &asked{resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, migration: &migrationv1alpha1.StorageVersionMigration{}}
	m := a.migration
	m.Name = "widgets.example.com-x"
	var out bytes.Buffer
	view := newMigrateView(&out)
	expect := func(want string) {
		t.Helper()
		view.show([]*asked{a})
		view.show([]*asked{a})
		if got := out.String(); got != want {
			t.Errorf("shown %q, want %q", got, want)
		}
		out.Reset()
	}
	now := metav1.NewTime(time.Now())
	expect("widgets.example.com: waiting for a server\n")
	a.waiting = "waiting until all servers agree on an encoding"
	expect("widgets.example.com: waiting until all servers agree on an encoding\n")
	m.Spec.Paused = true
	expect("widgets.example.com: paused\n")
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, "", now)
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 1000, Done: 240, Failed: 10, ObjectsPerSecond: 25}
	expect("widgets.example.com: 240 of 1000 objects (24 %), 25/s, 10 cannot be migrated, about 31s left\n")
	if got, want := a.line(8), "widgets.example.com: [#.......] 240 of 1000 objects (24 %), 25/s, 10 cannot be migrated, about 31s left"; got != want {
		t.Errorf("bar %q, want %q", got, want)
	}
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused, "", now)
	expect("widgets.example.com: paused: 240 of 1000 objects (24 %), 10 cannot be migrated\n")
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonProving, "", now)
	expect("widgets.example.com: proving: 240 of 1000 objects (24 %), 10 cannot be migrated\n")
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, "2 of 1000 objects cannot be migrated", now)
	m.Status.Failures = []migrationv1alpha1.MigrationFailure{{Namespace: "ns", Name: "one", Reason: migrationv1alpha1.FailureDoesNotDecode, Message: "broken"}, {Name: "two", Message: "torn"}}
	m.Status.Progress.Failed = 2
	expect("widgets.example.com: failed: 2 of 1000 objects cannot be migrated\n  ns/one: DoesNotDecode: broken\n  two: not migrated: torn\n")
	if err := verdict([]*asked{a}); exitCode(err) != 2 || !strings.Contains(err.Error(), "1 of 1 migrations did not succeed: widgets.example.com") {
		t.Errorf("verdict %v with code %d", err, exitCode(err))
	}
	m.Status.Failures = nil
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged, "it changed", now)
	expect("widgets.example.com: superseded: it changed\n")
	a.migration, a.deleted = &migrationv1alpha1.StorageVersionMigration{}, true
	if err := verdict([]*asked{a}); exitCode(err) != 2 {
		t.Errorf("of a deleted migration the verdict is %v", err)
	}
}

// TestGoesOn: a user that interrupts the command is told which migrations go on.
func TestGoesOn(t *testing.T) {
	a := &asked{migration: &migrationv1alpha1.StorageVersionMigration{}}
	a.migration.Name = "widgets-x"
	err := butGoesOn(errors.New("interrupted"), []*asked{a})
	if !strings.Contains(err.Error(), "interrupted; the migrations go on in the servers") || !strings.HasSuffix(err.Error(), ": widgets-x") || exitCode(err) != 1 {
		t.Errorf("error %v", err)
	}
}

// exitCode is the exit code that a program's main makes from an error.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// TestNobodyLooks: if there are no StorageStates, or no definition of them, the error says which program makes
// them.
func TestNobodyLooks(t *testing.T) {
	missing, err := newFake(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewNotFound(schema.GroupResource{Group: "migration.k8s.io", Resource: "storagestates"}, "")
	}})
	must(t, err)
	empty, err := newFake(interceptor.Funcs{})
	must(t, err)
	for name, cluster := range map[string]client.Client{"without the definition": missing, "without states": empty} {
		if _, err := (&migrateOptions{}).resources(t.Context(), nil, cluster, []string{"deployments"}); err == nil || err.Error() != NobodyLooks {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReportedOnly: a resource that servers report may be named before it has a StorageState. For a user that may
// not list StorageVersions, only resources with a StorageState count.
func TestReportedOnly(t *testing.T) {
	refuse := false
	cluster, err := newFake(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, is := list.(*apiserverinternalv1alpha1.StorageVersionList); is && refuse {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "storageversions"}, "", errors.New("no"))
		}
		return c.List(ctx, list, options...)
	}})
	must(t, err)
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "configmaps"}}
	state.Spec.Resource = migrationv1alpha1.GroupResource{Resource: "configmaps"}
	flunders := schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}
	version := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(flunders)}}
	version.Status.StorageVersions = []apiserverinternalv1alpha1.ServerStorageVersion{{APIServerID: "a", EncodingVersion: "wardle.example.com/v1alpha1"}}
	vacant := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: "wardle.example.com.fischers"}}
	for _, object := range []client.Object{state, version, vacant} {
		must(t, cluster.Create(t.Context(), object))
	}
	all := &migrateOptions{all: true}
	if got, err := (&migrateOptions{}).resources(t.Context(), nil, cluster, []string{"flunders"}); err != nil || len(got) != 1 || got[0] != flunders {
		t.Errorf("flunders are %v, %v", got, err)
	}
	if got, err := all.resources(t.Context(), nil, cluster, nil); err != nil || Names(got) != "configmaps, flunders.wardle.example.com" {
		t.Errorf("all are %v, %v", got, err)
	}
	refuse = true
	if got, err := all.resources(t.Context(), nil, cluster, nil); err != nil || Names(got) != "configmaps" {
		t.Errorf("without reports all are %v, %v", got, err)
	}
}

// TestMayNotTidy: a user that may create migrations, but not delete the old ones, may ask for a migration again.
func TestMayNotTidy(t *testing.T) {
	refuse := true
	cluster, err := newFake(interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		if refuse {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "storageversionmigrations"}, o.GetName(), errors.New("no"))
		}
		return c.Delete(ctx, o, options...)
	}})
	must(t, err)
	gr := schema.GroupResource{Resource: "configmaps"}
	for _, left := range []int{1, 2, 1} {
		a, err := (&migrateOptions{}).create(t.Context(), cluster, gr, "")
		must(t, err)
		var all migrationv1alpha1.StorageVersionMigrationList
		if err := cluster.List(t.Context(), &all); err != nil || len(all.Items) != left {
			t.Errorf("%d migrations, %v; want %d", len(all.Items), err, left)
		}
		migrationv1alpha1.SetCondition(a.migration, migrationv1alpha1.MigrationSucceeded, "", "", metav1.Now())
		must(t, cluster.Update(t.Context(), a.migration))
		refuse = left == 1
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
