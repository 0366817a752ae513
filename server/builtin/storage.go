package builtin

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/featuregate"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// MediaType is the encoding of everything that is stored.
const MediaType = "application/vnd.kubernetes.protobuf"

// stores are the REST storages of one resource by subresource; "" is the resource itself.
type stores map[string]rest.Storage

// generics is what every kind's storage is built from.
type generics struct {
	getter      generic.RESTOptionsGetter
	deps        Deps
	expressions *expressions
}

// Deps are the things that built-in resources need from the server.
type Deps struct {
	// Authorizer answers the access reviews. Required.
	Authorizer authorizer.Authorizer
	// Rules answers SelfSubjectRulesReviews; nil: they are answered as incomplete.
	Rules authorizer.RuleResolver
	// MinCompatibility is the oldest release that must understand what is stored: CEL
	// expressions that are new to an object use nothing newer. Required.
	MinCompatibility *utilversion.Version
	// Features say which fields take data. Required.
	Features featuregate.FeatureGate
	// Clock gives deletion times and printed ages; nil: the wall clock.
	Clock clock.PassiveClock
	// EventTTL is how long an event is kept after its last update; 0: one hour.
	EventTTL time.Duration
}

func (d Deps) withDefaults() (Deps, error) {
	if d.Authorizer == nil {
		return d, fmt.Errorf("built-in resources need an authorizer")
	}
	if d.MinCompatibility == nil {
		return d, fmt.Errorf("built-in resources need a minimum compatibility version")
	}
	if d.Features == nil {
		return d, fmt.Errorf("built-in resources need feature gates")
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.EventTTL == 0 {
		d.EventTTL = time.Hour
	}
	return d, nil
}

// traits are what a kind's storage has beyond its strategy.
type traits[P object] struct {
	singular   string
	shortNames []string
	categories []string
	// columns stand between name and age, or are all there are.
	columns    []column[P]
	allColumns bool
	// fields are selectable beyond name and namespace.
	fields func(P) fields.Set
	ttl    time.Duration
}

// resourceREST is the storage of a resource with all verbs.
type resourceREST struct {
	*registry.Store
	shortNames, categories []string
}

var (
	_ rest.StandardStorage    = &resourceREST{}
	_ rest.ShortNamesProvider = &resourceREST{}
	_ rest.CategoriesProvider = &resourceREST{}
)

// ShortNames implements rest.ShortNamesProvider.
func (r *resourceREST) ShortNames() []string { return r.shortNames }

// Categories implements rest.CategoriesProvider.
func (r *resourceREST) Categories() []string { return r.categories }

func newREST[P object](k kind, g generics, s *strategy[P], t traits[P]) (*resourceREST, error) {
	hub := k.versions[0]
	columns := t.columns
	if !t.allColumns {
		columns = slices.Concat([]column[P]{nameColumn[P]()}, t.columns, []column[P]{ageColumn[P]()})
	}
	store := &registry.Store{
		NewFunc:                   newOf(hub.object),
		NewListFunc:               newOf(hub.list),
		DefaultQualifiedResource:  k.GroupResource,
		SingularQualifiedResource: schema.GroupResource{Group: k.Group, Resource: t.singular},
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		TableConvertor:            table[P]{columns: columns, clock: g.deps.Clock},
	}
	if t.ttl > 0 {
		seconds := uint64(t.ttl / time.Second)
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	options := &generic.StoreOptions{RESTOptions: g.getter, AttrFunc: attributes(s.namespaced, t.fields)}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", k.GroupResource, err)
	}
	return &resourceREST{Store: store, shortNames: t.shortNames, categories: t.categories}, nil
}

func newOf(example runtime.Object) func() runtime.Object {
	t := reflect.TypeOf(example).Elem()
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

// attributes returns what selectors match an object by.
func attributes[P object](namespaced bool, more func(P) fields.Set) func(runtime.Object) (labels.Set, fields.Set, error) {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		typed, ok := obj.(P)
		if !ok {
			return nil, nil, fmt.Errorf("cannot select %T", obj)
		}
		set := fields.Set{}
		if more != nil {
			set = more(typed)
		}
		set["metadata.name"] = typed.GetName()
		if namespaced {
			set["metadata.namespace"] = typed.GetNamespace()
		}
		return typed.GetLabels(), set, nil
	}
}

// subresourceREST serves get, update and patch of a subresource that is a part of the
// object, such as status.
type subresourceREST struct{ store *registry.Store }

var (
	_ rest.Storage             = &subresourceREST{}
	_ rest.Getter              = &subresourceREST{}
	_ rest.Updater             = &subresourceREST{}
	_ rest.Patcher             = &subresourceREST{}
	_ rest.ResetFieldsStrategy = &subresourceREST{}
	_ rest.TableConvertor      = &subresourceREST{}
)

func newSubresource[P object](parent *registry.Store, s *strategy[P]) *subresourceREST {
	store := *parent
	store.UpdateStrategy = s
	store.ResetFieldsStrategy = s
	return &subresourceREST{store: &store}
}

// New implements rest.Storage.
func (r *subresourceREST) New() runtime.Object { return r.store.New() }

// Destroy implements rest.Storage. The parent's storage is shared and destroyed there.
func (r *subresourceREST) Destroy() {}

// Get implements rest.Getter.
func (r *subresourceREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A subresource never creates its object.
func (r *subresourceREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, createValidation, updateValidation, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *subresourceREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (r *subresourceREST) ConvertToTable(ctx context.Context, obj, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, tableOptions)
}

// StorageFactory returns the factory that stores every resource as the plan says, in
// protobuf. Objects read from it have no TypeMeta, as in-memory objects must not.
func StorageFactory(plan Plan, etcd storagebackend.Config) *serverstorage.DefaultStorageFactory {
	encodings := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(Scheme, nil)
	enabled := serverstorage.NewResourceConfig()
	factory := serverstorage.NewDefaultStorageFactory(etcd, MediaType, Codecs, encodings, enabled, nil)
	for _, p := range PersistedResources(plan) {
		internal := schema.GroupVersion{Group: p.GroupResource.Group, Version: runtime.APIVersionInternal}
		encodings.SetResourceEncoding(p.GroupResource, p.Storage, internal)
		enabled.EnableVersions(p.Storage)
		factory.AddSerializationChains(nil, withoutTypeMeta, p.GroupResource)
		if len(p.Aliases) > 0 {
			factory.AddCohabitatingResources(append([]schema.GroupResource{p.GroupResource}, p.Aliases...)...)
		}
	}
	return factory
}

// withoutTypeMeta makes storage decoders clear the TypeMeta of what they decode: the
// in-memory type is also a versioned one, and a list in another version would show it.
func withoutTypeMeta(decoders []runtime.Decoder) []runtime.Decoder {
	return []runtime.Decoder{typeMetaClearer{recognizer.NewDecoder(decoders...)}}
}

type typeMetaClearer struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d typeMetaClearer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := d.Decoder.Decode(data, defaults, into)
	if obj != nil && err == nil {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, gvk, err
}
