package registry

import (
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// Kind is a kind of the protocol's own API objects.
type Kind uint8

// The kinds of the API.
const (
	StorageVersions Kind = iota
	Leases
	Definitions
	States
	Migrations
	Kinds // how many there are
)

var kindPrefix = [Kinds]string{"/registry/storageversions/", "/registry/leases/", "/registry/definitions/", "/registry/states/", "/registry/migrations/"}

var kindResource = [Kinds]schema.GroupResource{
	storageversion.Resource,
	{Group: coordinationv1.GroupName, Resource: "leases"},
	{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"},
	migrationv1alpha1.StorageStates,
	migrationv1alpha1.StorageVersionMigrations,
}

// Prefix begins the etcd keys of the kind's objects.
func (k Kind) Prefix() string { return kindPrefix[k] }

// Resource is how the API's paths name the kind.
func (k Kind) Resource() schema.GroupResource { return kindResource[k] }

// KindOf returns the kind of an object or a list, Kinds if it is not simulated.
func KindOf(obj runtime.Object) Kind {
	switch obj.(type) {
	case *v1alpha1.StorageVersion, *v1alpha1.StorageVersionList:
		return StorageVersions
	case *coordinationv1.Lease, *coordinationv1.LeaseList:
		return Leases
	case *apiextensionsv1.CustomResourceDefinition, *apiextensionsv1.CustomResourceDefinitionList:
		return Definitions
	case *migrationv1alpha1.StorageState, *migrationv1alpha1.StorageStateList:
		return States
	case *migrationv1alpha1.StorageVersionMigration, *migrationv1alpha1.StorageVersionMigrationList:
		return Migrations
	}
	return Kinds
}

// KeyOf returns the etcd key of an API object.
func KeyOf(k Kind, name string) string { return k.Prefix() + name }
