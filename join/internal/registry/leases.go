package registry

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
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

// Only the server's own member writes Leases here.
func (leaseStrategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }

func (leaseStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
