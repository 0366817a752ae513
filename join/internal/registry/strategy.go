package registry

import (
	"context"
	"slices"
	"strings"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// checked is the common part of all strategies: objects are not created by an update, an update names the
// resourceVersion that it read, and there are no warnings.
type checked struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (checked) AllowCreateOnUpdate(context.Context) bool                         { return false }
func (checked) AllowUnconditionalUpdate(context.Context) bool                    { return false }
func (checked) Canonicalize(runtime.Object)                                      {}
func (checked) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (checked) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }

// strategy governs the writes of StorageVersions. A server creates the object with its report in
// one write, so create keeps the status.
type strategy struct {
	checked
	// prepare makes of an update the object that is stored in old's place.
	prepare func(sv, old *v1alpha1.StorageVersion)
	// reset are the top-level fields that a client cannot set here.
	reset []string
}

var (
	main   = strategy{checked{Scheme, names.SimpleNameGenerator}, storageversion.PrepareUpdate, []string{"status"}}
	status = strategy{checked{Scheme, names.SimpleNameGenerator}, storageversion.PrepareStatusUpdate, []string{"metadata", "spec"}}

	_ rest.RESTCreateStrategy  = strategy{}
	_ rest.RESTUpdateStrategy  = strategy{}
	_ rest.RESTDeleteStrategy  = strategy{}
	_ rest.ResetFieldsStrategy = strategy{}
)

func (strategy) NamespaceScoped() bool { return false }

func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	storageversion.PrepareCreate(obj.(*v1alpha1.StorageVersion))
}

func (s strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	s.prepare(obj.(*v1alpha1.StorageVersion), old.(*v1alpha1.StorageVersion))
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	sv := obj.(*v1alpha1.StorageVersion)
	var errs field.ErrorList
	path := field.NewPath("metadata", "name")
	if sv.Name == "" {
		errs = append(errs, field.Required(path, "name or generateName is required"))
	} else {
		for _, msg := range validateName(sv.Name) {
			errs = append(errs, field.Invalid(path, sv.Name, msg))
		}
	}
	return append(errs, validate(sv)...)
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if _, err := storageversion.History(old.(*v1alpha1.StorageVersion)); err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata", "annotations"), err)}
	}
	return validate(obj.(*v1alpha1.StorageVersion))
}

func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, path := range s.reset {
		set.Insert(fieldpath.MakePathOrDie(path))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): set}
}

func validateName(name string) []string {
	i := strings.LastIndex(name, ".")
	if i < 0 {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	return append(utilvalidation.IsDNS1123Subdomain(name[:i]), utilvalidation.IsDNS1035Label(name[i+1:])...)
}

// validate checks the reports (an encoding is decodable, served versions are decodable, server IDs are unique), and
// that the stated agreement follows from them.
func validate(sv *v1alpha1.StorageVersion) field.ErrorList {
	path := field.NewPath("status")
	reports := storageversion.Reports(sv)
	if err := agree.Validate(reports); err != nil {
		return field.ErrorList{field.Invalid(path.Child("storageVersions"), field.OmitValueType{}, err.Error())}
	}
	var errs field.ErrorList
	common, agreed := agree.Common(reports)
	stated := sv.Status.CommonEncodingVersion
	switch {
	case agreed && stated == nil:
		errs = append(errs, field.Required(path.Child("commonEncodingVersion"), "all servers encode "+string(common.Plain())))
	case agreed && *stated != string(common.Plain()):
		errs = append(errs, field.Invalid(path.Child("commonEncodingVersion"), *stated, "all servers encode "+string(common.Plain())))
	case !agreed && stated != nil:
		errs = append(errs, field.Invalid(path.Child("commonEncodingVersion"), *stated, "must not be set: servers do not agree"))
	}
	return append(errs, validateConditions(sv.Status.Conditions, path.Child("conditions"))...)
}

func validateConditions(conditions []v1alpha1.StorageVersionCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[v1alpha1.StorageVersionConditionType]bool{}
	statuses := []v1alpha1.ConditionStatus{v1alpha1.ConditionTrue, v1alpha1.ConditionFalse, v1alpha1.ConditionUnknown}
	for i, c := range conditions {
		at := path.Index(i)
		switch {
		case c.Type == "":
			errs = append(errs, field.Required(at.Child("type"), ""))
		case seen[c.Type]:
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = true
		if !slices.Contains(statuses, c.Status) {
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, statuses))
		}
		if c.Reason == "" {
			errs = append(errs, field.Required(at.Child("reason"), ""))
		}
	}
	return errs
}
