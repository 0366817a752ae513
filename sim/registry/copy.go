package registry

import (
	"maps"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// Objects that a client reads or sends are copies. They are most of what a simulation
// does, so the copies here are made with fewer allocations than the generated ones, of
// which they are equals.

// CopyOf returns a copy of an API object, nil if its kind is not simulated.
func CopyOf(obj client.Object) client.Object {
	var c client.Object
	switch obj.(type) {
	case *v1alpha1.StorageVersion:
		c = &v1alpha1.StorageVersion{}
	case *coordinationv1.Lease:
		c = &coordinationv1.Lease{}
	case *apiextensionsv1.CustomResourceDefinition:
		c = &apiextensionsv1.CustomResourceDefinition{}
	case *migrationv1alpha1.StorageState:
		c = &migrationv1alpha1.StorageState{}
	case *migrationv1alpha1.StorageVersionMigration:
		c = &migrationv1alpha1.StorageVersionMigration{}
	default:
		return nil
	}
	CopyInto(obj, c)
	return c
}

// CopyInto makes an API object a copy of another one of its kind.
func CopyInto(from, to client.Object) {
	switch f := from.(type) {
	case *v1alpha1.StorageVersion:
		copyStorageVersion(f, to.(*v1alpha1.StorageVersion))
	case *coordinationv1.Lease:
		copyLease(f, to.(*coordinationv1.Lease), &leaseParts{})
	case *apiextensionsv1.CustomResourceDefinition:
		copyDefinition(f, to.(*apiextensionsv1.CustomResourceDefinition))
	case *migrationv1alpha1.StorageState:
		copyState(f, to.(*migrationv1alpha1.StorageState))
	case *migrationv1alpha1.StorageVersionMigration:
		copyMigration(f, to.(*migrationv1alpha1.StorageVersionMigration))
	}
}

func copyMeta(from, to *metav1.ObjectMeta) {
	if from.OwnerReferences != nil || from.Finalizers != nil || from.ManagedFields != nil || from.DeletionGracePeriodSeconds != nil {
		from.DeepCopyInto(to)
		return
	}
	*to = *from
	to.DeletionTimestamp = from.DeletionTimestamp.DeepCopy()
	// A clone of a small map is one of its memory, without a hash of a key.
	to.Labels, to.Annotations = maps.Clone(from.Labels), maps.Clone(from.Annotations)
}

func copyStorageVersion(from, to *v1alpha1.StorageVersion) {
	to.TypeMeta, to.Spec = from.TypeMeta, from.Spec
	copyMeta(&from.ObjectMeta, &to.ObjectMeta)
	f, t := &from.Status, &to.Status
	t.CommonEncodingVersion = nil
	if f.CommonEncodingVersion != nil {
		common := *f.CommonEncodingVersion
		t.CommonEncodingVersion = &common
	}
	t.Conditions = copySlice(f.Conditions)
	t.StorageVersions = copySlice(f.StorageVersions)
	n := 0
	for i := range t.StorageVersions {
		n += len(t.StorageVersions[i].DecodableVersions) + len(t.StorageVersions[i].ServedVersions)
	}
	room := make([]string, 0, n)
	for i := range t.StorageVersions {
		report := &t.StorageVersions[i]
		room = cut(room, &report.DecodableVersions)
		room = cut(room, &report.ServedVersions)
	}
}

// copySlice copies a slice of plain values. It keeps nil apart from empty.
func copySlice[T any](from []T) []T {
	if from == nil {
		return nil
	}
	to := make([]T, len(from))
	copy(to, from)
	return to
}

// cut replaces a slice with a copy of it in room, and returns the room with that copy.
// The copy has no capacity to spare: append makes another one.
func cut(room []string, s *[]string) []string {
	if *s == nil {
		return room
	}
	begin := len(room)
	room = append(room, *s...)
	*s = room[begin:len(room):len(room)]
	return room
}

// leaseParts are the values that a Lease's spec points to.
type leaseParts struct {
	holder          string
	acquire, renew  metav1.MicroTime
	durationSeconds int32
}

func copyLease(from, to *coordinationv1.Lease, parts *leaseParts) {
	to.TypeMeta = from.TypeMeta
	copyMeta(&from.ObjectMeta, &to.ObjectMeta)
	f := &from.Spec
	if f.HolderIdentity == nil || f.LeaseDurationSeconds == nil || f.AcquireTime == nil || f.RenewTime == nil ||
		f.LeaseTransitions != nil || f.Strategy != nil || f.PreferredHolder != nil {
		f.DeepCopyInto(&to.Spec)
		return
	}
	*parts = leaseParts{*f.HolderIdentity, *f.AcquireTime, *f.RenewTime, *f.LeaseDurationSeconds}
	to.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &parts.holder, LeaseDurationSeconds: &parts.durationSeconds, AcquireTime: &parts.acquire, RenewTime: &parts.renew,
	}
}

func copyDefinition(from, to *apiextensionsv1.CustomResourceDefinition) {
	to.TypeMeta = from.TypeMeta
	copyMeta(&from.ObjectMeta, &to.ObjectMeta)
	from.Spec.DeepCopyInto(&to.Spec)
	from.Status.DeepCopyInto(&to.Status)
}

func copyState(from, to *migrationv1alpha1.StorageState) {
	to.TypeMeta, to.Spec = from.TypeMeta, from.Spec
	copyMeta(&from.ObjectMeta, &to.ObjectMeta)
	from.Status.DeepCopyInto(&to.Status)
}

func copyMigration(from, to *migrationv1alpha1.StorageVersionMigration) {
	to.TypeMeta = from.TypeMeta
	copyMeta(&from.ObjectMeta, &to.ObjectMeta)
	from.Spec.DeepCopyInto(&to.Spec)
	from.Status.DeepCopyInto(&to.Status)
}
