package claim

import (
	"math"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// Metrics count what this server does of migrations. The first three have the names, labels
// and label values of kube-storage-version-migrator's, as KEP-4192 writes them; in the others a
// resource is named as in Concord's other metrics.
type Metrics struct {
	migrated, migrations *metrics.CounterVec
	remaining            *metrics.GaugeVec
	failed, conflicts    *metrics.CounterVec
	rate                 *metrics.GaugeVec
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	counter := func(namespace, subsystem, name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	gauge := func(namespace, subsystem, name, help string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"resource"})
	}
	const migrator, core, concord, migration = "storage_migrator", "core_migrator", "concord", "migration"
	return &Metrics{
		migrated:   counter(migrator, core, "migrated_objects_total", "Objects that this server has migrated or found migrated, by resource.", "resource"),
		remaining:  gauge(migrator, core, "remaining_objects_total", "Objects that still have to be migrated, by resource; absent where this server does not migrate."),
		migrations: counter(migrator, core, "migrations_total", "Migrations that this server has ended, by resource and status: Succeeded, Failed, or Aborted for one that was ended or deleted because the agreement it was made for is gone.", "resource", "status"),
		failed:     counter(concord, migration, "failed_objects_total", "Objects that could not be migrated, by resource and reason. One that is tried again counts again.", "resource", "reason"),
		conflicts:  counter(concord, migration, "conflicts_total", "Times that an object was found changed by a client when it was to be written, by resource.", "resource"),
		rate:       gauge(concord, migration, "objects_per_second", "Rate of the migration that this server does, in the last ten seconds, by resource; absent where it does none."),
	}
}

// Registerables returns the metrics to register.
func (x *Metrics) Registerables() []metrics.Registerable {
	return []metrics.Registerable{x.migrated, x.remaining, x.migrations, x.failed, x.conflicts, x.rate}
}

// observe counts the progress of the migration that was not counted before. Work that a
// rewrite does again, because it goes on at an earlier place, counts once. Counters are shown
// from the first migration on, at 0, so that the increase of the first failure is seen.
func (x *Metrics) observe(w *work, p Progress) {
	if x == nil {
		return
	}
	resource := w.gr.String()
	for _, c := range []struct {
		to      *metrics.CounterVec
		label   string
		counted *int64
		now     int64
	}{
		{x.migrated, w.label(), &w.counted.Done, p.Done}, {x.conflicts, resource, &w.counted.Conflicts, p.Conflicts},
	} {
		c.to.WithLabelValues(c.label).Add(float64(max(0, c.now-*c.counted)))
		*c.counted = max(*c.counted, c.now)
	}
	for _, reason := range migrationv1alpha1.FailureReasons {
		failed, counted := p.FailedByReason[reason], w.counted.FailedByReason[reason]
		x.failed.WithLabelValues(resource, string(reason)).Add(float64(max(0, failed-counted)))
		w.counted.FailedByReason[reason] = max(failed, counted)
	}
	x.remaining.WithLabelValues(w.label()).Set(float64(max(0, p.Total-p.Done)))
	x.rate.WithLabelValues(resource).Set(math.Floor(w.rate(p)))
}

// Ended counts a migration that this server has ended: Succeeded, Failed or Aborted. The controller that wrote the end
// calls it, so that it is counted once. A migration that failed because its agreement is gone counts as aborted:
// nothing is wrong.
func (x *Metrics) Ended(m *migrationv1alpha1.StorageVersionMigration, status string) {
	if x != nil {
		if failed := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed); failed != nil && migrationv1alpha1.Superseded(failed.Reason) {
			status = migrationv1alpha1.EventAborted
		}
		x.migrations.WithLabelValues(label(m, migrationv1alpha1.Resource(m), migrationv1alpha1.TargetOf(m)), status).Inc()
	}
}

// rest takes back the metrics that hold only while this server works on the migration.
func (x *Metrics) rest(w *work) {
	if x != nil {
		x.remaining.DeleteLabelValues(w.label())
		x.rate.DeleteLabelValues(w.gr.String())
	}
}

func (w *work) label() string { return label(w.m, w.gr, w.target) }

// label is the resource in the form of kube-storage-version-migrator's label. Where the
// migration names no version it is that of the encoding.
func label(m *migrationv1alpha1.StorageVersionMigration, gr schema.GroupResource, target evolve.Target) string {
	version := m.Spec.Resource.Version
	if version == "" {
		version = target.Encoding.Version()
	}
	return schema.GroupVersionResource{Group: gr.Group, Version: version, Resource: gr.Resource}.String()
}
