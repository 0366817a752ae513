package builtin

import (
	"context"
	"strconv"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// migrationStorage stores Kubernetes' own StorageVersionMigrations, which package mirror has
// carried out.
func migrationStorage(k kind, g generics) (stores, error) {
	type migration = *storagemigrationv1.StorageVersionMigration
	s := newStrategy[migration](false)
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, m migration) { m.Status = storagemigrationv1.StorageVersionMigrationStatus{} }
	s.prepareUpdate = func(_ context.Context, m, old migration) { m.Status = old.Status }
	s.validate = func(_ context.Context, m migration) field.ErrorList {
		return validateMigratedResource(m.Spec.Resource, field.NewPath("spec", "resource"))
	}
	s.validateUpdate = func(_ context.Context, m, old migration) field.ErrorList {
		return validation.ValidateImmutableField(m.Spec, old.Spec, field.NewPath("spec"))
	}
	parent, err := newREST(k, g, s, traits[migration]{
		singular: "storageversionmigration",
		columns: []column[migration]{
			{name: "Resource", typ: "string", description: storagemigrationv1.StorageVersionMigrationSpec{}.SwaggerDoc()["resource"],
				cell: func(m migration, _ time.Time) any { return m.Spec.Resource.String() }},
			{name: "Status", typ: "string", description: "The condition that is true.",
				cell: func(m migration, _ time.Time) any { return printMigrationStatus(m.Status.Conditions) }},
		},
	})
	if err != nil {
		return nil, err
	}
	status := s.sub(func(_ context.Context, m, old migration) {
		m.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(m, old)
	}, func(_ context.Context, m, old migration) field.ErrorList {
		return validateMigrationStatus(m.Status, old.Status)
	})
	status.reset = k.resetFields("metadata", "spec")
	return stores{"": parent, "status": newSubresource(parent.Store, status)}, nil
}

func validateMigratedResource(gr metav1.GroupResource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if gr.Group != "" {
		for _, msg := range utilvalidation.IsDNS1123Subdomain(gr.Group) {
			errs = append(errs, field.Invalid(p.Child("group"), gr.Group, msg))
		}
	}
	if gr.Resource == "" {
		return append(errs, field.Required(p.Child("resource"), ""))
	}
	for _, msg := range utilvalidation.IsDNS1035Label(gr.Resource) {
		errs = append(errs, field.Invalid(p.Child("resource"), gr.Resource, msg))
	}
	return errs
}

// validateMigrationStatus: a migration ends once, and its resource version is set once.
func validateMigrationStatus(status, old storagemigrationv1.StorageVersionMigrationStatus) field.ErrorList {
	p := field.NewPath("status")
	errs := validateConditions(status.Conditions)
	is := func(conditions []metav1.Condition, t storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(conditions, string(t))
	}
	succeeded := is(status.Conditions, storagemigrationv1.MigrationSucceeded)
	failed := is(status.Conditions, storagemigrationv1.MigrationFailed)
	running := is(status.Conditions, storagemigrationv1.MigrationRunning)
	conditions := p.Child("conditions")
	if succeeded && failed {
		errs = append(errs, field.Invalid(conditions, status.Conditions, "a migration cannot have both succeeded and failed"))
	}
	if running && (succeeded || failed) {
		errs = append(errs, field.Invalid(conditions, status.Conditions, "a migration that has ended is not running"))
	}
	for _, end := range []storagemigrationv1.MigrationConditionType{storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed} {
		if is(old.Conditions, end) && !is(status.Conditions, end) {
			errs = append(errs, field.Invalid(conditions, status.Conditions, "a migration that has ended stays "+string(end)))
		}
	}
	if status.ResourceVersion != "" {
		if v, err := strconv.ParseInt(status.ResourceVersion, 10, 64); err != nil || v < 0 {
			errs = append(errs, field.Invalid(p.Child("resourceVersion"), status.ResourceVersion, "must be a non-negative integer"))
		}
	}
	if old.ResourceVersion != "" && old.ResourceVersion != status.ResourceVersion {
		errs = append(errs, field.Invalid(p.Child("resourceVersion"), status.ResourceVersion, validation.FieldImmutableErrorMsg))
	}
	return errs
}

func printMigrationStatus(conditions []metav1.Condition) string {
	for _, c := range []storagemigrationv1.MigrationConditionType{
		storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationRunning,
	} {
		if meta.IsStatusConditionTrue(conditions, string(c)) {
			return string(c)
		}
	}
	return "Pending"
}
