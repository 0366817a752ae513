// Package registry serves StorageVersions (internal.apiserver.k8s.io/v1alpha1, KEP-2339) on
// any server that is built on k8s.io/apiserver. Their strategy computes the epoch on every
// write, whatever the client sent.
package registry

import (
	"context"
	"fmt"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/concord-dev/concord/api/storageversion"
)

// StorageVersions of v1alpha1, their only version, stand for the in-memory form, too.
var (
	// Scheme knows StorageVersions.
	Scheme         = runtime.NewScheme()
	codecs         = serializer.NewCodecFactory(Scheme)
	parameterCodec = runtime.NewParameterCodec(Scheme)
)

func init() {
	utilruntime.Must(v1alpha1.AddToScheme(Scheme))
	internal := schema.GroupVersion{Group: v1alpha1.GroupName, Version: runtime.APIVersionInternal}
	Scheme.AddKnownTypes(internal, &v1alpha1.StorageVersion{}, &v1alpha1.StorageVersionList{})
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(Scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion))
}

// Codec stores StorageVersions in protobuf, as kube-apiserver does.
func Codec() (runtime.Codec, error) {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("%s has no serializer for protobuf", v1alpha1.SchemeGroupVersion)
	}
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), v1alpha1.SchemeGroupVersion, runtime.InternalGroupVersioner), nil
}

// Group returns the API group to install, whose objects are stored as options say.
func Group(options generic.RESTOptions) (*genericapiserver.APIGroupInfo, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &v1alpha1.StorageVersion{} },
		NewListFunc:               func() runtime.Object { return &v1alpha1.StorageVersionList{} },
		DefaultQualifiedResource:  storageversion.Resource,
		SingularQualifiedResource: schema.GroupResource{Group: v1alpha1.GroupName, Resource: "storageversion"},
		CreateStrategy:            main,
		UpdateStrategy:            main,
		DeleteStrategy:            main,
		ResetFieldsStrategy:       main,
		TableConvertor:            table{},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", storageversion.Resource, err)
	}
	ofStatus := *store
	ofStatus.UpdateStrategy, ofStatus.ResetFieldsStrategy = status, status
	info := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, Scheme, parameterCodec, codecs)
	info.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"storageversions":        store,
		"storageversions/status": &statusREST{store: &ofStatus},
	}
	return &info, nil
}

// attributes are the labels and fields by which selectors match a StorageVersion.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	sv, ok := obj.(*v1alpha1.StorageVersion)
	if !ok {
		return nil, nil, fmt.Errorf("cannot select %T", obj)
	}
	return sv.Labels, fields.Set{"metadata.name": sv.Name}, nil
}

// statusREST serves get, update and patch of the status.
type statusREST struct{ store *genericregistry.Store }

var (
	_ rest.Getter              = &statusREST{}
	_ rest.Patcher             = &statusREST{}
	_ rest.ResetFieldsStrategy = &statusREST{}
	_ rest.TableConvertor      = &statusREST{}
)

// New implements rest.Storage.
func (r *statusREST) New() runtime.Object { return r.store.New() }

// Destroy implements rest.Storage. The object's storage is shared and destroyed there.
func (r *statusREST) Destroy() {}

// Get implements rest.Getter.
func (r *statusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A status never creates its object.
func (r *statusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *statusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (r *statusREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
