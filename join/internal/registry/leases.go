package registry

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/names"
)

// Leases is the Leases' own resource.
var Leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

var leases = newGroup(coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})

// LeaseScheme knows Leases.
var LeaseScheme = leases.scheme

// LeaseGroup returns the API group of Leases, for an aggregated API server: package join keeps its Leases in its own
// etcd.
func LeaseGroup(of StorageOf) (*genericapiserver.APIGroupInfo, error) {
	options, err := leases.storage(Leases, of)
	if err != nil {
		return nil, err
	}
	strategy := leaseStrategy{checked{LeaseScheme, names.SimpleNameGenerator}}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &coordinationv1.Lease{} },
		NewListFunc:               func() runtime.Object { return &coordinationv1.LeaseList{} },
		DefaultQualifiedResource:  Leases,
		SingularQualifiedResource: schema.GroupResource{Group: coordinationv1.GroupName, Resource: "lease"},
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(Leases),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", Leases, err)
	}
	return leases.installed(map[string]rest.Storage{"leases": store}), nil
}

// leaseStrategy governs the writes of Leases.
type leaseStrategy struct{ checked }

var (
	_ rest.RESTCreateStrategy = leaseStrategy{}
	_ rest.RESTUpdateStrategy = leaseStrategy{}
	_ rest.RESTDeleteStrategy = leaseStrategy{}
)

func (leaseStrategy) NamespaceScoped() bool                                   { return true }
func (leaseStrategy) PrepareForCreate(context.Context, runtime.Object)        {}
func (leaseStrategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object) {}

func (leaseStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	lease := obj.(*coordinationv1.Lease)
	errs := validation.ValidateObjectMeta(&lease.ObjectMeta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateLease(lease)...)
}

func (leaseStrategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return validateLease(obj.(*coordinationv1.Lease))
}

func validateLease(lease *coordinationv1.Lease) field.ErrorList {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "leaseDurationSeconds"), *seconds, "must be greater than 0")}
	}
	return nil
}
