package builtin

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func mutatingPolicyStorage(k kind, g generics) (stores, error) {
	type policy = *admissionv1.MutatingAdmissionPolicy
	s := newStrategy[policy](false)
	s.validate = func(_ context.Context, p policy) field.ErrorList { return validateMutatingPolicy(&p.Spec) }
	withGeneration(s, func(p policy) any { return p.Spec })
	store, err := newREST(k, g, s, traits[policy]{
		singular:   "mutatingadmissionpolicy",
		categories: apiExtensions,
		columns: []column[policy]{
			{name: "Mutations", typ: "integer", description: "The number of mutations.",
				cell: func(p policy, _ time.Time) any { return int64(len(p.Spec.Mutations)) }},
			{name: "ParamKind", typ: "string", description: "The kind of resources that parameterize the policy.",
				cell: func(p policy, _ time.Time) any { return printParamKind(p.Spec.ParamKind) }},
		},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func defaultMutatingPolicy(p *admissionv1.MutatingAdmissionPolicy) {
	defaultPolicy(&p.Spec.FailurePolicy, p.Spec.MatchConstraints)
}

func validateMutatingPolicy(spec *admissionv1.MutatingAdmissionPolicySpec) field.ErrorList {
	p := field.NewPath("spec")
	errs := validatePolicySpec(policySpec{
		paramKind:       spec.ParamKind,
		matchResources:  spec.MatchConstraints,
		matchConditions: spec.MatchConditions,
		variables:       spec.Variables,
		failurePolicy:   spec.FailurePolicy,
	}, p)
	if spec.ReinvocationPolicy == "" {
		errs = append(errs, field.Required(p.Child("reinvocationPolicy"), ""))
	} else {
		errs = append(errs, oneOf(spec.ReinvocationPolicy, p.Child("reinvocationPolicy"),
			admissionv1.NeverReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy)...)
	}
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(p.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, validateMutation(&spec.Mutations[i], p.Child("mutations").Index(i))...)
	}
	return errs
}

// validateMutation: a mutation has exactly the member that its patch type names.
func validateMutation(m *admissionv1.Mutation, p *field.Path) field.ErrorList {
	apply, jsonPatch := p.Child("applyConfiguration"), p.Child("jsonPatch")
	var errs field.ErrorList
	switch m.PatchType {
	case "":
		return field.ErrorList{field.Required(p.Child("patchType"), "")}
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(apply, "applyConfiguration is required when patchType is ApplyConfiguration"))
		} else {
			errs = append(errs, validateExpression(m.ApplyConfiguration.Expression, apply.Child("expression"))...)
		}
		if m.JSONPatch != nil {
			errs = append(errs, field.Forbidden(jsonPatch, "may be set only when patchType is JSONPatch"))
		}
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(jsonPatch, "jsonPatch is required when patchType is JSONPatch"))
		} else {
			errs = append(errs, validateExpression(m.JSONPatch.Expression, jsonPatch.Child("expression"))...)
		}
		if m.ApplyConfiguration != nil {
			errs = append(errs, field.Forbidden(apply, "may be set only when patchType is ApplyConfiguration"))
		}
	default:
		errs = oneOf(m.PatchType, p.Child("patchType"), admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch)
	}
	return errs
}

func mutatingBindingStorage(k kind, g generics) (stores, error) {
	type binding = *admissionv1.MutatingAdmissionPolicyBinding
	s := newStrategy[binding](false)
	s.validate = func(_ context.Context, b binding) field.ErrorList {
		return validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, field.NewPath("spec"))
	}
	withGeneration(s, func(b binding) any { return b.Spec })
	store, err := newREST(k, g, s, traits[binding]{
		singular:   "mutatingadmissionpolicybinding",
		categories: apiExtensions,
		columns: []column[binding]{
			{name: "PolicyName", typ: "string", description: "The policy that is bound.",
				cell: func(b binding, _ time.Time) any { return b.Spec.PolicyName }},
			{name: "ParamRef", typ: "string", description: "The parameters that the policy is bound with.",
				cell: func(b binding, _ time.Time) any { return printParamRef(b.Spec.ParamRef) }},
		},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}
