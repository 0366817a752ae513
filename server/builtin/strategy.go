package builtin

import (
	"context"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// An object is a pointer to an API type that has metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// A strategy is what one resource, or one of its subresources, does to objects of type P
// on create and update. Hooks that are nil do nothing. Metadata is validated by the
// registry; a strategy adds only the rule for names.
type strategy[P object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
	// createOnUpdate: a PUT of an object that does not exist creates it.
	createOnUpdate bool
	// unconditional: an update without resourceVersion is accepted.
	unconditional bool
	// name validates metadata.name on create.
	name validation.ValidateNameFunc

	prepareCreate  func(ctx context.Context, obj P)
	prepareUpdate  func(ctx context.Context, obj, old P)
	validate       func(ctx context.Context, obj P) field.ErrorList
	validateUpdate func(ctx context.Context, obj, old P) field.ErrorList
	canonicalize   func(obj P)
	// reset are the fields that a client cannot set here, by version; server-side apply
	// records no owner for them.
	reset map[fieldpath.APIVersion]*fieldpath.Set
}

var (
	_ rest.RESTCreateStrategy  = &strategy[object]{}
	_ rest.RESTUpdateStrategy  = &strategy[object]{}
	_ rest.RESTDeleteStrategy  = &strategy[object]{}
	_ rest.ResetFieldsStrategy = &strategy[object]{}
)

// newStrategy returns a strategy of objects whose names are DNS subdomains.
func newStrategy[P object](namespaced bool) *strategy[P] {
	return &strategy[P]{
		ObjectTyper:   Scheme,
		NameGenerator: names.SimpleNameGenerator,
		namespaced:    namespaced,
		name:          validation.NameIsDNSSubdomain,
	}
}

func (s *strategy[P]) NamespaceScoped() bool                                     { return s.namespaced }
func (s *strategy[P]) AllowCreateOnUpdate(context.Context) bool                  { return s.createOnUpdate }
func (s *strategy[P]) AllowUnconditionalUpdate(context.Context) bool             { return s.unconditional }
func (s *strategy[P]) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s *strategy[P]) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string {
	return nil
}

func (s *strategy[P]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.prepareCreate != nil {
		s.prepareCreate(ctx, obj.(P))
	}
}

func (s *strategy[P]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.prepareUpdate != nil {
		s.prepareUpdate(ctx, obj.(P), old.(P))
	}
}

func (s *strategy[P]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	typed := obj.(P)
	var errs field.ErrorList
	if name := typed.GetName(); name == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	} else {
		for _, msg := range s.name(name, false) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, msg))
		}
	}
	if s.validate != nil {
		errs = append(errs, s.validate(ctx, typed)...)
	}
	return errs
}

// ValidateUpdate applies validateUpdate, or validate where a resource has no own rules
// for updates.
func (s *strategy[P]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	switch {
	case s.validateUpdate != nil:
		return s.validateUpdate(ctx, obj.(P), old.(P))
	case s.validate != nil:
		return s.validate(ctx, obj.(P))
	}
	return nil
}

func (s *strategy[P]) Canonicalize(obj runtime.Object) {
	if s.canonicalize != nil {
		s.canonicalize(obj.(P))
	}
}

func (s *strategy[P]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return s.reset }

// sub returns a strategy for a subresource: the same resource with other rules for
// updates.
func (s *strategy[P]) sub(prepare func(ctx context.Context, obj, old P), validate func(ctx context.Context, obj, old P) field.ErrorList) *strategy[P] {
	sub := *s
	sub.createOnUpdate = false
	sub.prepareUpdate = prepare
	sub.validateUpdate = validate
	if validate == nil {
		sub.validateUpdate = func(context.Context, P, P) field.ErrorList { return nil }
	}
	return &sub
}

// resetFields names top-level fields, in every version of the kind.
func (k kind) resetFields(paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, t := range k.versions {
		set := fieldpath.NewSet()
		for _, path := range paths {
			set.Insert(fieldpath.MakePathOrDie(path))
		}
		reset[fieldpath.APIVersion(k.groupVersion(t).String())] = set
	}
	return reset
}
