package builtin

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// storageVersionStorage stores StorageVersions (KEP-2339). Their epoch annotations are
// computed here on every write, whatever the client sent. A server creates the object
// with its report in one write, so create keeps status.
func storageVersionStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*v1alpha1.StorageVersion](false)
	s.name = validateStorageVersionName
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, sv *v1alpha1.StorageVersion) { storageversion.PrepareCreate(sv) }
	s.prepareUpdate = func(_ context.Context, sv, old *v1alpha1.StorageVersion) { storageversion.PrepareUpdate(sv, old) }
	s.validate = func(_ context.Context, sv *v1alpha1.StorageVersion) field.ErrorList {
		return validateStorageVersion(sv)
	}
	s.validateUpdate = validateStorageVersionUpdate
	parent, err := newREST(k, g, s, traits[*v1alpha1.StorageVersion]{
		singular: "storageversion",
		columns:  storageVersionColumns(),
	})
	if err != nil {
		return nil, err
	}
	status := s.sub(func(_ context.Context, sv, old *v1alpha1.StorageVersion) {
		storageversion.PrepareStatusUpdate(sv, old)
	}, validateStorageVersionUpdate)
	status.reset = k.resetFields("metadata", "spec")
	return stores{"": parent, "status": newSubresource(parent.Store, status)}, nil
}

func validateStorageVersionName(name string, prefix bool) []string {
	if prefix {
		return nil
	}
	group, resource, ok := cutLast(name, ".")
	if !ok {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	return append(utilvalidation.IsDNS1123Subdomain(group), utilvalidation.IsDNS1035Label(resource)...)
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// validateStorageVersion checks the reports (an encoding is decodable, served versions
// are decodable, server IDs are unique) and that the agreement stated is the one that
// follows from them.
func validateStorageVersion(sv *v1alpha1.StorageVersion) field.ErrorList {
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
	return append(errs, validateStorageVersionConditions(sv.Status.Conditions, path.Child("conditions"))...)
}

func validateStorageVersionConditions(conditions []v1alpha1.StorageVersionCondition, path *field.Path) field.ErrorList {
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

func validateStorageVersionUpdate(_ context.Context, sv, old *v1alpha1.StorageVersion) field.ErrorList {
	if _, err := storageversion.History(old); err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("metadata", "annotations"), err)}
	}
	return validateStorageVersion(sv)
}

func storageVersionColumns() []column[*v1alpha1.StorageVersion] {
	return []column[*v1alpha1.StorageVersion]{
		{
			name: "Encoding", typ: "string", description: "The encodings that servers report; one means agreement.",
			cell: func(sv *v1alpha1.StorageVersion, _ time.Time) any {
				return orNone(agree.Join(agree.Encodings(storageversion.Reports(sv))))
			},
		},
		{
			name: "Agreed", typ: "string", description: "Whether all servers report the same encoding.",
			cell: func(sv *v1alpha1.StorageVersion, _ time.Time) any {
				for _, c := range sv.Status.Conditions {
					if c.Type == v1alpha1.AllEncodingVersionsEqual {
						return string(c.Status)
					}
				}
				return string(v1alpha1.ConditionUnknown)
			},
		},
		{
			name: "Servers", typ: "integer", description: "The number of servers that report.",
			cell: func(sv *v1alpha1.StorageVersion, _ time.Time) any { return int64(len(sv.Status.StorageVersions)) },
		},
		{
			name: "Epoch", typ: "integer", description: "Raised whenever the set of reported encodings changes.",
			cell: func(sv *v1alpha1.StorageVersion, _ time.Time) any {
				history, err := storageversion.History(sv)
				if err != nil {
					return "<invalid>"
				}
				return history.Epoch
			},
		},
	}
}
