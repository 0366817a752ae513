package verdict

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
)

// Evidence returns the objects that could not be read, as the last ended migration of each
// resource names them.
func Evidence(migrations []migrationv1alpha1.StorageVersionMigration) map[schema.GroupResource]compat.Undecodable {
	last := map[schema.GroupResource]*migrationv1alpha1.StorageVersionMigration{}
	for i := range migrations {
		m := &migrations[i]
		gr := migrationv1alpha1.Resource(m)
		if old := last[gr]; migrationv1alpha1.Final(m) && (old == nil || endedAfter(m, old)) {
			last[gr] = m
		}
	}
	found := map[schema.GroupResource]compat.Undecodable{}
	for gr, m := range last {
		var u compat.Undecodable
		for _, f := range m.Status.Failures {
			if f.Reason == migrationv1alpha1.FailureDoesNotDecode {
				u.Objects++
				if len(u.First) < named {
					u.First = append(u.First, f.Object())
				}
			}
		}
		if p := m.Status.Progress; p != nil {
			u.Objects = max(u.Objects, p.FailedByReason[migrationv1alpha1.FailureDoesNotDecode])
		}
		if u.Objects > 0 && migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed) != nil {
			found[gr] = u
		}
	}
	return found
}

// endedAfter reports whether m counts, and not old. If both ended in the same second, which is the resolution of their
// times, the one with failed objects counts.
func endedAfter(m, old *migrationv1alpha1.StorageVersionMigration) bool {
	a, _ := migrationv1alpha1.PastOf(m, nil)
	b, _ := migrationv1alpha1.PastOf(old, nil)
	if a.Ended.Equal(&b.Ended) {
		return migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed) != nil && len(m.Status.Failures) > 0
	}
	return a.Ended.After(b.Ended.Time)
}
