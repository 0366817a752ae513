package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of StorageState and StorageVersionMigration.
const GroupName = "migration.k8s.io"

// SchemeGroupVersion is the group and version of this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// StorageStates and StorageVersionMigrations are this package's own resources.
var (
	StorageStates            = schema.GroupResource{Group: GroupName, Resource: "storagestates"}
	StorageVersionMigrations = schema.GroupResource{Group: GroupName, Resource: "storageversionmigrations"}
)

// AddToScheme registers the types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&StorageState{},
		&StorageStateList{},
		&StorageVersionMigration{},
		&StorageVersionMigrationList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
