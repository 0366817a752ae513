package mirror

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// plan holds the changes to make for one migration of storagemigration.k8s.io.
type plan struct {
	// remove are the copies whose original is gone.
	remove []*migrationv1alpha1.StorageVersionMigration
	// create is the copy that is missing, nil if none is.
	create *migrationv1alpha1.StorageVersionMigration
	// status is the original's new status, nil if it is as it should be.
	status *storagemigrationv1.StorageVersionMigrationStatus
	// ended is the resource whose definition may not say any more that the original runs, nil
	// if it may.
	ended *schema.GroupResource
}

// decide compares the original, nil if it is gone, with its copies. gv is the version in
// which it is served.
func decide(gv schema.GroupVersion, original *storagemigrationv1.StorageVersionMigration, copies []*migrationv1alpha1.StorageVersionMigration, now metav1.Time) plan {
	var p plan
	var own *migrationv1alpha1.StorageVersionMigration
	for _, c := range copies {
		owner := migrationv1alpha1.Original(c)
		switch {
		case original == nil || owner.UID != original.UID:
			p.remove = append(p.remove, c)
			if original == nil {
				p.ended = &schema.GroupResource{Group: c.Spec.Resource.Group, Resource: c.Spec.Resource.Resource}
			}
		case c.Name == copyName(original):
			own = c
		}
	}
	switch {
	case original == nil || original.DeletionTimestamp != nil:
	case ended(original):
		// While it is Running, too, kube-controller-manager's migrator has not cleaned up yet.
		if !is(original.Status.Conditions, storagemigrationv1.MigrationRunning) {
			p.ended = &schema.GroupResource{Group: original.Spec.Resource.Group, Resource: original.Spec.Resource.Resource}
		}
	case own == nil:
		p.create = newCopy(gv, original)
		p.follow(original, p.create, now)
	default:
		p.follow(original, own, now)
	}
	return p
}

// taken reports whether the status of a migration already says that Concord does it, so that kube-controller-manager's
// migrator does not start it any more.
func taken(m *storagemigrationv1.StorageVersionMigration) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, string(storagemigrationv1.MigrationRunning))
	return c != nil && !migrationv1alpha1.OfManager(c.Reason)
}

func ended(m *storagemigrationv1.StorageVersionMigration) bool {
	return is(m.Status.Conditions, storagemigrationv1.MigrationSucceeded) || is(m.Status.Conditions, storagemigrationv1.MigrationFailed)
}

func is(conditions []metav1.Condition, t storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(conditions, string(t))
}

// maxName is how long the name of an object may be.
const maxName = 253

// copyName returns the name of the copy. It depends only on the original's name and uid, so that there is never more
// than one copy.
func copyName(m *storagemigrationv1.StorageVersionMigration) string {
	suffix := "-" + string(m.UID)
	return strings.TrimRight(m.Name[:min(len(m.Name), maxName-len(suffix))], ".-") + suffix
}

func newCopy(gv schema.GroupVersion, m *storagemigrationv1.StorageVersionMigration) *migrationv1alpha1.StorageVersionMigration {
	c := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource},
	}}
	c.Name = copyName(m)
	owner := metav1.NewControllerRef(m, gv.WithKind(migrationv1alpha1.MigrationKind))
	// With it, the admission plugin OwnerReferencesPermissionEnforcement would want permission for the original's finalizers.
	owner.BlockOwnerDeletion = nil
	c.OwnerReferences = []metav1.OwnerReference{*owner}
	return c
}

// follow has the original's status say the same as its copy's.
func (p *plan) follow(original *storagemigrationv1.StorageVersionMigration, own *migrationv1alpha1.StorageVersionMigration, now metav1.Time) {
	status := original.Status.DeepCopy()
	if status.ResourceVersion == "" && begun(own) {
		// All resources are in one etcd, so that its revision is every list's. At the copy's
		// every encoding that may be stored is known, or will be read later. Not before it has
		// begun: kube-controller-manager's migrator takes it as a start, and would not wait
		// for the servers to agree.
		status.ResourceVersion = own.ResourceVersion
	}
	for _, c := range own.Status.Conditions {
		condition := metav1.Condition{
			Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), ObservedGeneration: original.Generation,
			LastTransitionTime: now, Reason: c.Reason, Message: message(c, own.Status.Progress),
		}
		if !slices.Contains(conditionTypes, c.Type) || c.Reason == "" {
			continue
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if len(own.Status.Conditions) == 0 {
		// Said at once: kube-controller-manager's migrator begins with a migration that says nothing.
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: string(storagemigrationv1.MigrationRunning), Status: metav1.ConditionFalse, ObservedGeneration: original.Generation, LastTransitionTime: now,
			Reason: migrationv1alpha1.ReasonPending, Message: "no server has begun",
		})
	}
	if !same(status, &original.Status) {
		p.status = status
	}
}

var conditionTypes = []migrationv1alpha1.MigrationConditionType{
	migrationv1alpha1.MigrationRunning, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationFailed,
}

// message adds the counts, for which storagemigration.k8s.io has no fields.
func message(c migrationv1alpha1.MigrationCondition, p *migrationv1alpha1.MigrationProgress) string {
	if c.Type != migrationv1alpha1.MigrationRunning || p == nil {
		return c.Message
	}
	counts := fmt.Sprintf("%d of %d objects are done, %d cannot be migrated", p.Done, p.Total, p.Failed)
	if c.Message == "" { // as after the end
		return counts
	}
	return c.Message + ": " + counts
}

func same(a, b *storagemigrationv1.StorageVersionMigrationStatus) bool {
	return a.ResourceVersion == b.ResourceVersion && slices.Equal(a.Conditions, b.Conditions)
}

// begun reports whether the copy runs or has finished.
func begun(own *migrationv1alpha1.StorageVersionMigration) bool {
	return slices.ContainsFunc(own.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Status == corev1.ConditionTrue && slices.Contains(conditionTypes, c.Type)
	})
}

// rest clears the condition of a CustomResourceDefinition that says that the migration of this name runs. It returns
// false if there is no such condition.
func rest(crd *apiextensionsv1.CustomResourceDefinition, name string, now metav1.Time) bool {
	c := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating)
	// The condition of kube-controller-manager's migrator; it takes it back only of a migration that
	// it has ended itself.
	if c == nil || c.Status != apiextensionsv1.ConditionTrue || c.Message != fmt.Sprintf("Migration %s is running", name) {
		return false
	}
	apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionFalse, ObservedGeneration: crd.Generation, LastTransitionTime: now,
		Reason: "MigrationEnded", Message: fmt.Sprintf("Migration %s does not run any more", name),
	})
	return true
}
