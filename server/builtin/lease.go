package builtin

import (
	"context"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/utils/ptr"
)

func leaseStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*coordinationv1.Lease](true)
	s.createOnUpdate = true
	if !g.deps.Features.Enabled(features.CoordinatedLeaderElection) {
		s.prepareCreate = func(_ context.Context, lease *coordinationv1.Lease) {
			dropCoordination(&lease.Spec, &coordinationv1.LeaseSpec{})
		}
		s.prepareUpdate = func(_ context.Context, lease, old *coordinationv1.Lease) {
			dropCoordination(&lease.Spec, &old.Spec)
		}
	}
	s.validate = func(_ context.Context, lease *coordinationv1.Lease) field.ErrorList {
		return validateLeaseSpec(&lease.Spec, field.NewPath("spec"))
	}
	store, err := newREST(k, g, s, traits[*coordinationv1.Lease]{
		singular: "lease",
		columns: []column[*coordinationv1.Lease]{{
			name: "Holder", typ: "string", description: coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"],
			cell: func(lease *coordinationv1.Lease, _ time.Time) any { return ptr.Deref(lease.Spec.HolderIdentity, "") },
		}},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// dropCoordination clears the fields of coordinated leader election that are not in use.
func dropCoordination(spec, old *coordinationv1.LeaseSpec) {
	if old.Strategy == nil {
		spec.Strategy = nil
	}
	if old.PreferredHolder == nil {
		spec.PreferredHolder = nil
	}
}

func validateLeaseSpec(spec *coordinationv1.LeaseSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	if spec.Strategy != nil {
		errs = append(errs, validateLeaseStrategy(*spec.Strategy, path.Child("strategy"))...)
	}
	if ptr.Deref(spec.PreferredHolder, "") != "" && ptr.Deref(spec.Strategy, "") == "" {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified when `strategy` is defined"))
	}
	return errs
}

// validateLeaseStrategy accepts the standard strategy and names with a domain prefix.
func validateLeaseStrategy(strategy coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	standard := []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}
	switch {
	case strategy == "":
		return field.ErrorList{field.Required(path, "")}
	case slices.Contains(standard, strategy):
		return nil
	case !strings.Contains(string(strategy), "/"):
		return field.ErrorList{field.NotSupported(path, strategy, standard)}
	}
	return utilvalidation.IsDomainPrefixedPath(path, string(strategy))
}

func leaseCandidateStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*coordinationv1beta1.LeaseCandidate](true)
	s.validate = func(_ context.Context, candidate *coordinationv1beta1.LeaseCandidate) field.ErrorList {
		return validateLeaseCandidateSpec(&candidate.Spec, field.NewPath("spec"))
	}
	s.validateUpdate = func(_ context.Context, candidate, old *coordinationv1beta1.LeaseCandidate) field.ErrorList {
		path := field.NewPath("spec")
		return append(validateLeaseCandidateSpec(&candidate.Spec, path),
			validation.ValidateImmutableField(candidate.Spec.LeaseName, old.Spec.LeaseName, path.Child("leaseName"))...)
	}
	cell := func(of func(coordinationv1beta1.LeaseCandidateSpec) string) func(*coordinationv1beta1.LeaseCandidate, time.Time) any {
		return func(candidate *coordinationv1beta1.LeaseCandidate, _ time.Time) any { return of(candidate.Spec) }
	}
	doc := coordinationv1beta1.LeaseCandidateSpec{}.SwaggerDoc()
	store, err := newREST(k, g, s, traits[*coordinationv1beta1.LeaseCandidate]{
		singular: "leasecandidate",
		columns: []column[*coordinationv1beta1.LeaseCandidate]{
			{name: "LeaseName", typ: "string", description: doc["leaseName"],
				cell: cell(func(s coordinationv1beta1.LeaseCandidateSpec) string { return s.LeaseName })},
			{name: "BinaryVersion", typ: "string", description: doc["binaryVersion"],
				cell: cell(func(s coordinationv1beta1.LeaseCandidateSpec) string { return s.BinaryVersion })},
			{name: "EmulationVersion", typ: "string", description: doc["emulationVersion"],
				cell: cell(func(s coordinationv1beta1.LeaseCandidateSpec) string { return s.EmulationVersion })},
			{name: "Strategy", typ: "string", description: doc["strategy"],
				cell: cell(func(s coordinationv1beta1.LeaseCandidateSpec) string { return string(s.Strategy) })},
		},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func validateLeaseCandidateSpec(spec *coordinationv1beta1.LeaseCandidateSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.LeaseName == "" {
		errs = append(errs, field.Required(path.Child("leaseName"), ""))
	}
	binary, binaryErrs := parseVersion(spec.BinaryVersion, path.Child("binaryVersion"))
	errs = append(errs, binaryErrs...)
	if spec.BinaryVersion == "" {
		errs = append(errs, field.Required(path.Child("binaryVersion"), ""))
	}
	emulation, emulationErrs := parseVersion(spec.EmulationVersion, path.Child("emulationVersion"))
	errs = append(errs, emulationErrs...)
	if binary != nil && emulation != nil && binary.LessThan(emulation) {
		errs = append(errs, field.Invalid(path.Child("binaryVersion"), spec.BinaryVersion, "must be greater than or equal to `emulationVersion`"))
	}
	if spec.Strategy == coordinationv1.OldestEmulationVersion && spec.EmulationVersion == "" {
		errs = append(errs, field.Required(path.Child("emulationVersion"), "must be specified when `strategy` is 'OldestEmulationVersion'"))
	}
	return append(errs, validateLeaseStrategy(spec.Strategy, path.Child("strategy"))...)
}

// parseVersion reads a semantic version; an empty one is nil.
func parseVersion(value string, path *field.Path) (*utilversion.Version, field.ErrorList) {
	if value == "" {
		return nil, nil
	}
	v, err := utilversion.ParseSemantic(value)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path, value, err.Error())}
	}
	return v, nil
}
