package observed

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

const (
	// ManagerNamespace and ManagerLease name the Lease by which kube-controller-manager is elected.
	ManagerNamespace = metav1.NamespaceSystem
	ManagerLease     = "kube-controller-manager"
	// UntouchedFor is for how long kube-controller-manager has to leave a migration of
	// storagemigration.k8s.io alone until its migrator counts as off. Where that is on it writes
	// into a new one's status within seconds.
	UntouchedFor = 5 * time.Minute
)

// InTree is the observed state of kube-controller-manager's own migrator.
type InTree struct {
	// Off says that the migrator does no migrations, so that others can do them.
	Off bool
	// Why says what was seen, or what is waited for.
	Why string
	// Since is when the migrator began to leave a migration alone, too recently to count; zero if it leaves none alone.
	Since time.Time
}

// AlphaMigrations is the version of storagemigration.k8s.io in 1.34 and older, where it is off by default.
// Conditions have no lastTransitionTime there: nothing is known of its migrations, and they are left alone.
const AlphaMigrations = "v1alpha1"

// JudgeInTree says whether kube-controller-manager's migrator is off. The migrator does not tell
// that: it is off if a migration was left alone for so long, all the while under the one process
// that is elected, or while none has a Lease. The last write counts: a migrator that was
// switched on again is seen when it begins one. What a process began that is elected no more says nothing, and
// nothing is said by others of its resource. lease is nil if there is none; all are the migrations of
// storagemigration.k8s.io.
func JudgeInTree(now time.Time, lease *coordinationv1.Lease, all []storagemigrationv1.StorageVersionMigration, untouched time.Duration) InTree {
	since, who, gone := elected(now, lease)
	if gone != "" {
		return InTree{Why: gone}
	}
	// The migrator does one migration of each resource at a time: others wait for one that it may have gone on with.
	waitsFor := map[metav1.GroupResource]bool{}
	for i := range all {
		at := touched(&all[i])
		if Forsaken(&all[i], lease) {
			waitsFor[all[i].Spec.Resource] = true
			continue
		}
		if !at.IsZero() && endOf(&all[i]).IsZero() {
			return InTree{Why: fmt.Sprintf("kube-controller-manager has begun %s", all[i].Name)}
		}
		if at.After(since) {
			since, who = at, "kube-controller-manager has ended one since"
		}
	}
	waits := InTree{Why: "its migrator is on unless it leaves a migration alone, and there is none"}
	for i := range all {
		m := &all[i]
		begin, end := m.CreationTimestamp.Time, endOf(m)
		kept := keptFrom(m)
		// It is not known when others took over a migration that was created before since.
		if !touched(m).IsZero() || waitsFor[m.Spec.Resource] || !kept.IsZero() && begin.Before(since) {
			continue
		}
		if begin.Before(since) {
			begin = since
		}
		open := kept.IsZero()
		if open {
			end = now
		} else if end.IsZero() || kept.Before(end) {
			end = kept
		}
		if left := end.Sub(begin); left >= untouched {
			return InTree{Off: true, Why: fmt.Sprintf("%s, and %s was left alone for %v", who, m.Name, left.Round(time.Second))}
		}
		if open && (waits.Since.IsZero() || begin.Before(waits.Since)) {
			waits.Since = begin
			waits.Why = fmt.Sprintf("%s, and %s has been left alone since %s", who, m.Name, begin.UTC().Format(time.RFC3339))
		}
	}
	return waits
}

// elected says since when the process is elected that may do migrations, or why that is not known.
func elected(now time.Time, lease *coordinationv1.Lease) (since time.Time, who, gone string) {
	if !held(lease) {
		return since, "no kube-controller-manager has a Lease", ""
	}
	s := lease.Spec
	if s.AcquireTime == nil || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return since, "", "kube-controller-manager's Lease does not tell since when it is elected"
	}
	if ran := s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second); now.After(ran) {
		return since, "", fmt.Sprintf("kube-controller-manager does not renew its Lease: what its successor does is not known (kubectl delete lease -n %s %s if there is none)", ManagerNamespace, ManagerLease)
	}
	return s.AcquireTime.Time, "kube-controller-manager is " + *s.HolderIdentity, ""
}

// held says whether a kube-controller-manager has the Lease.
func held(lease *coordinationv1.Lease) bool {
	return lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
}

// Forsaken says whether a kube-controller-manager that is elected no more has begun a migration, and not ended
// it. Its successor may go on with it, or not: that is not seen in this migration.
func Forsaken(m *storagemigrationv1.StorageVersionMigration, lease *coordinationv1.Lease) bool {
	at := touched(m)
	if at.IsZero() || Ended(m) {
		return false
	}
	if !held(lease) {
		return true
	}
	acquired := lease.Spec.AcquireTime
	return acquired != nil && at.Add(time.Second).Before(acquired.Time) // at is in whole seconds
}

// touched is when kube-controller-manager last wrote into a migration's status; zero if it never
// did. It is known by the reasons that it gives.
func touched(m *storagemigrationv1.StorageVersionMigration) (at time.Time) {
	for _, c := range m.Status.Conditions {
		if migrationv1alpha1.OfManager(c.Reason) && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	if len(m.Status.Conditions) == 0 && m.Status.ResourceVersion != "" { // of old releases the first that is written
		at = m.CreationTimestamp.Time
	}
	return at
}

// keptFrom is when another one than kube-controller-manager's migrator wrote the conditions of a
// migration that it has not begun, rounded up to a second; zero if it has none. As long as one of them
// says that it does not run that migrator does not start it.
func keptFrom(m *storagemigrationv1.StorageVersionMigration) (at time.Time) {
	for _, c := range m.Status.Conditions {
		if at.IsZero() || c.LastTransitionTime.Add(time.Second).Before(at) {
			at = c.LastTransitionTime.Add(time.Second) // it is kept in whole seconds
		}
	}
	return at
}

// endOf is when a migration ended; zero if it has not.
func endOf(m *storagemigrationv1.StorageVersionMigration) time.Time {
	for _, c := range m.Status.Conditions {
		if c.Status == metav1.ConditionTrue && (c.Type == string(storagemigrationv1.MigrationSucceeded) || c.Type == string(storagemigrationv1.MigrationFailed)) {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// Ended says whether a migration of storagemigration.k8s.io has ended.
func Ended(m *storagemigrationv1.StorageVersionMigration) bool { return !endOf(m).IsZero() }
