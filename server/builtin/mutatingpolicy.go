package builtin

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
)

func mutatingPolicyStorage(k kind, g generics) (stores, error) {
	type policy = *admissionv1.MutatingAdmissionPolicy
	store, err := policyStorage(k, g, newStrategy[policy](false), policyKind[policy]{
		singular: "mutatingadmissionpolicy",
		steps: column[policy]{name: "Mutations", typ: "integer", description: "The number of mutations.",
			cell: func(p policy, _ time.Time) any { return int64(len(p.Spec.Mutations)) }},
		spec: func(p policy) policySpec {
			return policySpec{p.Spec.ParamKind, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.Variables, p.Spec.FailurePolicy}
		},
		desired:     func(p policy) any { return p.Spec },
		validate:    validateMutatingPolicy,
		expressions: mutatingExpressions,
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func defaultMutatingPolicy(p *admissionv1.MutatingAdmissionPolicy) {
	defaultPolicy(&p.Spec.FailurePolicy, p.Spec.MatchConstraints)
}

func validateMutatingPolicy(policy *admissionv1.MutatingAdmissionPolicy, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec := &policy.Spec
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

// mutatingExpressions may also name the types of patches.
func mutatingExpressions(policy *admissionv1.MutatingAdmissionPolicy, declared plugincel.OptionalVariableDeclarations, p *field.Path) []expression {
	declared.HasPatchTypes = true
	var list []expression
	for i, m := range policy.Spec.Mutations {
		at := p.Child("mutations").Index(i)
		if m.PatchType == admissionv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil {
			accessor := &patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}
			list = append(list, expression{accessor, at.Child("applyConfiguration", "expression"), declared})
		}
		if m.PatchType == admissionv1.PatchTypeJSONPatch && m.JSONPatch != nil {
			accessor := &patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}
			list = append(list, expression{accessor, at.Child("jsonPatch", "expression"), declared})
		}
	}
	return list
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
			errs = append(errs, requireExpression(m.ApplyConfiguration.Expression, apply.Child("expression"))...)
		}
		if m.JSONPatch != nil {
			errs = append(errs, field.Forbidden(jsonPatch, "may be set only when patchType is JSONPatch"))
		}
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(jsonPatch, "jsonPatch is required when patchType is JSONPatch"))
		} else {
			errs = append(errs, requireExpression(m.JSONPatch.Expression, jsonPatch.Child("expression"))...)
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
	return bindingStorage(k, g, bindingKind[binding]{
		singular: "mutatingadmissionpolicybinding",
		spec: func(b binding) bindingSpec {
			return bindingSpec{b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		desired: func(b binding) any { return b.Spec },
	})
}
