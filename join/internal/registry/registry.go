// Package registry serves StorageVersions (internal.apiserver.k8s.io/v1alpha1, KEP-2339) on
// any server that is built on k8s.io/apiserver. Their strategy computes the epoch on every
// write, whatever the client sent.
package registry

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// group is an API group with one version, which stands for the in-memory form, too.
type group struct {
	version schema.GroupVersion
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
}

var storageVersions = newGroup(v1alpha1.SchemeGroupVersion, v1alpha1.AddToScheme, &v1alpha1.StorageVersion{}, &v1alpha1.StorageVersionList{})

// Scheme knows StorageVersions.
var Scheme = storageVersions.scheme

func newGroup(version schema.GroupVersion, add func(*runtime.Scheme) error, kinds ...runtime.Object) group {
	scheme := runtime.NewScheme()
	utilruntime.Must(add(scheme))
	scheme.AddKnownTypes(schema.GroupVersion{Group: version.Group, Version: runtime.APIVersionInternal}, kinds...)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(scheme.SetVersionPriority(version))
	return group{version: version, scheme: scheme, codecs: serializer.NewCodecFactory(scheme)}
}

// codec stores objects in protobuf, as kube-apiserver does.
func (g group) codec() (runtime.Codec, error) {
	info, ok := runtime.SerializerInfoForMediaType(g.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("%s has no serializer for protobuf", g.version)
	}
	return g.codecs.CodecForVersions(info.Serializer, g.codecs.UniversalDeserializer(), g.version, runtime.InternalGroupVersioner), nil
}

// installed is the group to install, which serves from storage.
func (g group) installed(storage map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(g.version.Group, g.scheme, runtime.NewParameterCodec(g.scheme), g.codecs)
	info.VersionedResourcesStorageMap[g.version.Version] = storage
	return &info
}

// StorageOf says how a server stores a resource whose objects a codec encodes.
type StorageOf func(schema.GroupResource, runtime.Codec) (generic.RESTOptions, error)

// storage is how the server stores a resource of the group.
func (g group) storage(resource schema.GroupResource, of StorageOf) (generic.RESTOptions, error) {
	codec, err := g.codec()
	if err != nil {
		return generic.RESTOptions{}, err
	}
	return of(resource, codec)
}

// Group returns the API group to install. Its objects are stored under prefix, in the storage that of returns. A
// damaged object does not affect the others.
func Group(of StorageOf, etcd *clientv3.Client, prefix string) (*genericapiserver.APIGroupInfo, error) {
	options, err := storageVersions.storage(storageversion.Resource, of)
	if err != nil {
		return nil, err
	}
	options.Decorator = tolerant(etcd, prefix, options.Decorator)
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
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", storageversion.Resource, err)
	}
	ofStatus := *store
	ofStatus.UpdateStrategy, ofStatus.ResetFieldsStrategy = status, status
	return storageVersions.installed(map[string]rest.Storage{
		"storageversions":        store,
		"storageversions/status": &statusREST{store: &ofStatus},
	}), nil
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
