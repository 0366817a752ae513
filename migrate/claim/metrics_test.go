package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"k8s.io/component-base/metrics"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// metered gives the world metrics, and returns a function that reads their values by name and
// labels.
func metered(t *testing.T, w *world) func() map[string]float64 {
	t.Helper()
	registry := metrics.NewKubeRegistry()
	w.c.cfg.Metrics = NewMetrics()
	for _, m := range w.c.cfg.Metrics.Registerables() {
		if err := registry.Register(m); err != nil {
			t.Fatal(err)
		}
	}
	return func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, family := range families {
			for _, m := range family.Metric {
				name := family.GetName()
				for _, l := range m.Label {
					name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
				}
				values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		return values
	}
}

// TestMetrics: the names, labels and values of the metrics, while a migration runs and after it.
// Objects that were done before the server went on with a migration are not counted again.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	values := metered(t, w)
	// versioned is the label of kube-storage-version-migrator's metrics, cronJobs that of all
	// others.
	const versioned, cronJobs = " resource=batch.example.com/v1, Resource=cronjobs", " resource=cronjobs.batch.example.com"
	want := func(want map[string]float64) {
		t.Helper()
		for _, reason := range migrationv1alpha1.FailureReasons {
			want["concord_migration_failed_objects_total reason="+string(reason)+cronJobs] += 0 // is shown as 0 before the first failure
		}
		if got := values(); !maps.Equal(got, want) {
			t.Errorf("metrics %v, want %v", got, want)
		}
	}
	w.migration(nil)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		p := half
		p.Conflicts, p.FailedByReason = 2, map[migrationv1alpha1.MigrationFailureReason]int64{migrationv1alpha1.FailureTooLarge: 1}
		progress(p)
		want(map[string]float64{
			"storage_migrator_core_migrator_migrated_objects_total" + versioned:  4,
			"storage_migrator_core_migrator_remaining_objects_total" + versioned: 6,
			"concord_migration_failed_objects_total reason=TooLarge" + cronJobs:  1,
			"concord_migration_conflicts_total" + cronJobs:                       2,
			"concord_migration_objects_per_second" + cronJobs:                    0,
		})
		return Result{Progress: p}, errors.New("etcd is away")
	}
	if _, err := step(w); err == nil {
		t.Fatal("no error")
	}
	w.rewrite = func(_ context.Context, job Job, progress func(Progress)) (Result, error) {
		if job.Resume != "half" {
			t.Errorf("it goes on at %q", job.Resume)
		}
		progress(Progress{Total: 10, Done: 4, Failed: 1, Conflicts: 2})
		return Result{Progress: Progress{Total: 10, Done: 8, Failed: 2, Conflicts: 3, FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{
			migrationv1alpha1.FailureTooLarge: 1, migrationv1alpha1.FailureRejected: 1,
		}}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed)
	want(map[string]float64{
		"storage_migrator_core_migrator_migrated_objects_total" + versioned:              8,
		"storage_migrator_core_migrator_migrations_total" + versioned + " status=Failed": 1,
		"concord_migration_failed_objects_total reason=TooLarge" + cronJobs:              1,
		"concord_migration_failed_objects_total reason=Rejected" + cronJobs:              1,
		"concord_migration_conflicts_total" + cronJobs:                                   3,
	})
}

// TestLabel: for a migration that names no version, the label has the encoding's version, without
// the encryption key.
func TestLabel(t *testing.T) {
	for encoding, want := range map[agree.Encoding]string{
		v1:                                "batch.example.com/v1, Resource=cronjobs",
		v2.Sealed("aescbc:v1:a/b:5bd1f0"): "batch.example.com/v2, Resource=cronjobs",
	} {
		w := &work{m: &migrationv1alpha1.StorageVersionMigration{}, gr: cronJobs, target: evolve.Target{Encoding: encoding}}
		if got := w.label(); got != want {
			t.Errorf("%s is labelled %q, want %q", encoding, got, want)
		}
	}
}
