package tally

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

var at = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func stateOf(resource string, current agree.Encoding, stored ...agree.Encoding) *migrationv1alpha1.StorageState {
	s := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource + ".example.com"}}
	migrationv1alpha1.SetState(s, evolve.State{Of: evolve.Ref{UID: "u", Epoch: 1}, Stored: stored, Current: current}, "Any")
	return s
}

func migrationOf(resource, name string, age time.Duration, change func(*migrationv1alpha1.StorageVersionMigration)) *migrationv1alpha1.StorageVersionMigration {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at.Add(-age))}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Version: "v2", Resource: resource}
	change(m)
	return m
}

func condition(t migrationv1alpha1.MigrationConditionType, reason string) func(*migrationv1alpha1.StorageVersionMigration) {
	return func(m *migrationv1alpha1.StorageVersionMigration) {
		migrationv1alpha1.SetCondition(m, t, reason, "", metav1.NewTime(at))
	}
}

func leaseOf(name string, annotations map[string]string) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(at)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: storageversion.IdentityNamespace, Name: name, Annotations: annotations,
			Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: &renewed},
	}
}

func newController(t *testing.T, list func(context.Context, client.ObjectList) error, objects ...client.Object) (*Controller, metrics.KubeRegistry) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, migrationv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			if err := list(ctx, o); err != nil {
				return err
			}
			return c.List(ctx, o, opts...)
		},
	}).Build()
	kept := func(ctx context.Context) ([]migrationv1alpha1.StorageState, []migrationv1alpha1.StorageVersionMigration, error) {
		var states migrationv1alpha1.StorageStateList
		var migrations migrationv1alpha1.StorageVersionMigrationList
		err := errors.Join(cluster.List(ctx, &states), cluster.List(ctx, &migrations))
		return states.Items, migrations.Items, err
	}
	c := New(Config{Kept: kept, Client: cluster, Metrics: NewMetrics()})
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(c.cfg.Metrics)
	return c, registry
}

// exposed returns the samples of a scrape, without help texts and without zeros.
func exposed(t *testing.T, registry metrics.KubeRegistry) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := testutil.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func everything(context.Context, client.ObjectList) error { return nil }

func TestStep(t *testing.T) {
	encrypted := stateOf("secrets", "example.com/v1+aescbc:v1:new:5bd1f0a2c3e49b77", "example.com/v1+aescbc:v1:old:1111111111111111", "example.com/v1+aescbc:v1:new:5bd1f0a2c3e49b77")
	progress := func(total, done, failed int64) func(*migrationv1alpha1.StorageVersionMigration) {
		return func(m *migrationv1alpha1.StorageVersionMigration) {
			condition(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting)(m)
			m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: total, Done: done, Failed: failed}
		}
	}
	upstream := leaseOf(storageversion.UpstreamIdentityPrefix+"0123456789abcdef", nil)
	c, registry := newController(t, everything,
		stateOf("gadgets", "example.com/v2", "example.com/v2"),
		stateOf("widgets", evolve.Unknown, evolve.Unknown, "example.com/v1"),
		encrypted,
		migrationOf("widgets", "a", time.Hour, condition(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed)),
		migrationOf("widgets", "b", time.Minute, progress(10, 4, 1)),
		leaseOf("apiserver-ours", map[string]string{storageversion.BinaryVersionAnnotation: "1.37"}),
		leaseOf("apiserver-stock", nil), upstream,
	)
	if lines := exposed(t, registry); len(lines) > 0 {
		t.Errorf("before anything was counted: %v", lines)
	}
	if err := c.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := `concord_migration_objects{resource="widgets.example.com",state="done"} 4
concord_migration_objects{resource="widgets.example.com",state="failed"} 1
concord_migration_objects{resource="widgets.example.com",state="remaining"} 5
concord_migrations{phase="Failed",resource="widgets.example.com"} 1
concord_migrations{phase="Running",resource="widgets.example.com"} 1
concord_server_lease_renewed_timestamp_seconds{lease="apiserver-ours",reports="true"} 1.893456e+09
concord_server_lease_renewed_timestamp_seconds{lease="apiserver-stock",reports="false"} 1.893456e+09
concord_storage_agreed{resource="gadgets.example.com"} 1
concord_storage_agreed{resource="secrets.example.com"} 1
concord_storage_encodings{resource="gadgets.example.com"} 1
concord_storage_encodings{resource="secrets.example.com"} 2
concord_storage_encodings{resource="widgets.example.com"} 2
concord_storage_keys{resource="secrets.example.com"} 2`
	if got := strings.Join(exposed(t, registry), "\n"); got != want {
		t.Errorf("shown are\n%s\nwant\n%s", got, want)
	}
}

func TestPhases(t *testing.T) {
	for want, change := range map[phase]func(*migrationv1alpha1.StorageVersionMigration){
		pending: func(*migrationv1alpha1.StorageVersionMigration) {},
		waiting: func(m *migrationv1alpha1.StorageVersionMigration) {
			migrationv1alpha1.SetWaiting(m, "why", metav1.Now())
		},
		running:    condition(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting),
		retrying:   condition(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying),
		paused:     condition(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused),
		succeeded:  condition(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded),
		failed:     condition(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonRewriteFailed),
		superseded: condition(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonStorageVersionChanged),
	} {
		if got := phaseOf(migrationOf("widgets", "m", 0, change)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := phaseOf(migrationOf("widgets", "m", 0, func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Paused = true })); got != paused {
		t.Errorf("paused before it began: %s", got)
	}
}

// TestErrorsKeepTheLast: while the API does not answer, the metrics keep their last values. When
// the controller is not elected any more, they have none.
func TestErrorsKeepTheLast(t *testing.T) {
	var broken error
	c, registry := newController(t, func(context.Context, client.ObjectList) error { return broken }, stateOf("gadgets", evolve.Unknown, "example.com/v2"))
	if err := c.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := strings.Join(exposed(t, registry), "\n")
	broken = errors.New("connection refused")
	if err := c.Step(t.Context()); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if after := strings.Join(exposed(t, registry), "\n"); after != before || after == "" {
		t.Errorf("shown is %q, was %q", after, before)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	c.Run(ended)
	if lines := exposed(t, registry); len(lines) > 0 {
		t.Errorf("after the term: %v", lines)
	}
}
