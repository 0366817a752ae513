package registry

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/names"
)

// Leases is the Leases' own resource.
var Leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// Leases of v1 stand for the in-memory form, too.
var (
	// LeaseScheme knows Leases.
	LeaseScheme         = runtime.NewScheme()
	leaseCodecs         = serializer.NewCodecFactory(LeaseScheme)
	leaseParameterCodec = runtime.NewParameterCodec(LeaseScheme)
)

func init() {
	utilruntime.Must(coordinationv1.AddToScheme(LeaseScheme))
	internal := schema.GroupVersion{Group: coordinationv1.GroupName, Version: runtime.APIVersionInternal}
	LeaseScheme.AddKnownTypes(internal, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	metav1.AddToGroupVersion(LeaseScheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(LeaseScheme.SetVersionPriority(coordinationv1.SchemeGroupVersion))
}

// LeaseCodec stores Leases in protobuf, as kube-apiserver does.
func LeaseCodec() (runtime.Codec, error) {
	info, ok := runtime.SerializerInfoForMediaType(leaseCodecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("%s has no serializer for protobuf", coordinationv1.SchemeGroupVersion)
	}
	return leaseCodecs.CodecForVersions(info.Serializer, leaseCodecs.UniversalDeserializer(), coordinationv1.SchemeGroupVersion, runtime.InternalGroupVersioner), nil
}

// LeaseGroup returns the API group of Leases, for a server whose cluster has them elsewhere:
// package join keeps those of aggregated API servers in their own etcd.
func LeaseGroup(options generic.RESTOptions) (*genericapiserver.APIGroupInfo, error) {
	strategy := leaseStrategy{LeaseScheme, names.SimpleNameGenerator}
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
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: leaseAttributes}); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", Leases, err)
	}
	info := genericapiserver.NewDefaultAPIGroupInfo(coordinationv1.GroupName, LeaseScheme, leaseParameterCodec, leaseCodecs)
	info.VersionedResourcesStorageMap[coordinationv1.SchemeGroupVersion.Version] = map[string]rest.Storage{"leases": store}
	return &info, nil
}

// leaseAttributes are the labels and fields by which selectors match a Lease.
func leaseAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return nil, nil, fmt.Errorf("cannot select %T", obj)
	}
	return lease.Labels, generic.ObjectMetaFieldsSet(&lease.ObjectMeta, true), nil
}

// leaseStrategy governs the writes of Leases.
type leaseStrategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateStrategy = leaseStrategy{}
	_ rest.RESTUpdateStrategy = leaseStrategy{}
	_ rest.RESTDeleteStrategy = leaseStrategy{}
)

func (leaseStrategy) NamespaceScoped() bool                                            { return true }
func (leaseStrategy) AllowCreateOnUpdate(context.Context) bool                         { return false }
func (leaseStrategy) AllowUnconditionalUpdate(context.Context) bool                    { return false }
func (leaseStrategy) Canonicalize(runtime.Object)                                      {}
func (leaseStrategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (leaseStrategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object)          {}
func (leaseStrategy) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (leaseStrategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }

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
