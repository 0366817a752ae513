package builtin

import (
	"context"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
)

const (
	maxAuditAnnotations = 20
	// maxValueExpression is the longest audit annotation expression, in bytes.
	maxValueExpression = 5 * 1024
)

func validatingPolicyStorage(k kind, g generics) (stores, error) {
	type policy = *admissionv1.ValidatingAdmissionPolicy
	s := newStrategy[policy](false)
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, p policy) { p.Status = admissionv1.ValidatingAdmissionPolicyStatus{} }
	s.prepareUpdate = func(_ context.Context, p, old policy) { p.Status = old.Status }
	parent, err := policyStorage(k, g, s, policyKind[policy]{
		singular: "validatingadmissionpolicy",
		steps: column[policy]{name: "Validations", typ: "integer", description: "The number of validations.",
			cell: func(p policy, _ time.Time) any { return int64(len(p.Spec.Validations)) }},
		spec: func(p policy) policySpec {
			return policySpec{p.Spec.ParamKind, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.Variables, p.Spec.FailurePolicy}
		},
		desired:     func(p policy) any { return p.Spec },
		validate:    validateValidatingPolicy,
		expressions: validatingExpressions,
	})
	if err != nil {
		return nil, err
	}
	status := s.sub(func(_ context.Context, p, old policy) {
		p.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(p, old)
	}, func(_ context.Context, p, _ policy) field.ErrorList { return validateConditions(p.Status.Conditions) })
	status.reset = k.resetFields("metadata", "spec")
	return stores{"": parent, "status": newSubresource(parent.Store, status)}, nil
}

func defaultValidatingPolicy(p *admissionv1.ValidatingAdmissionPolicy) {
	defaultPolicy(&p.Spec.FailurePolicy, p.Spec.MatchConstraints)
}

func validateValidatingPolicy(policy *admissionv1.ValidatingAdmissionPolicy, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec := &policy.Spec
	if len(spec.Validations) == 0 && len(spec.AuditAnnotations) == 0 {
		errs = append(errs, field.Required(p.Child("validations"), "validations or auditAnnotations must be specified"))
	}
	for i := range spec.Validations {
		errs = append(errs, validateValidation(&spec.Validations[i], p.Child("validations").Index(i))...)
	}
	return append(errs, validateAuditAnnotations(spec.AuditAnnotations, p.Child("auditAnnotations"))...)
}

// validatingExpressions: the messages' expressions may not ask the authorizer.
func validatingExpressions(policy *admissionv1.ValidatingAdmissionPolicy, declared plugincel.OptionalVariableDeclarations, p *field.Path) []expression {
	var list []expression
	unauthorized := declared
	unauthorized.HasAuthorizer = false
	for i, v := range policy.Spec.Validations {
		at := p.Child("validations").Index(i)
		list = append(list,
			expression{&validating.ValidationCondition{Expression: v.Expression}, at.Child("expression"), declared},
			expression{&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, at.Child("messageExpression"), unauthorized})
	}
	for i, a := range policy.Spec.AuditAnnotations {
		accessor := &validating.AuditAnnotationCondition{ValueExpression: a.ValueExpression}
		list = append(list, expression{accessor, p.Child("auditAnnotations").Index(i).Child("valueExpression"), declared})
	}
	return list
}

func validateValidation(v *admissionv1.Validation, p *field.Path) field.ErrorList {
	errs := requireExpression(v.Expression, p.Child("expression"))
	if v.MessageExpression != "" {
		errs = append(errs, requireExpression(v.MessageExpression, p.Child("messageExpression"))...)
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "message must be non-empty if specified"))
	case strings.Contains(message, "\n"):
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "message must not contain line breaks"))
	case message == "" && strings.Contains(strings.TrimSpace(v.Expression), "\n"):
		errs = append(errs, field.Required(p.Child("message"), "message must be specified if expression contains line breaks"))
	}
	if v.Reason != nil {
		errs = append(errs, oneOf(*v.Reason, p.Child("reason"), metav1.StatusReasonForbidden, metav1.StatusReasonInvalid,
			metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnauthorized)...)
	}
	return errs
}

func validateAuditAnnotations(annotations []admissionv1.AuditAnnotation, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(annotations) > maxAuditAnnotations {
		errs = append(errs, field.TooMany(p, len(annotations), maxAuditAnnotations))
	}
	seen := sets.New[string]()
	for i, annotation := range annotations {
		at := p.Index(i)
		for _, msg := range utilvalidation.IsQualifiedName(annotation.Key) {
			errs = append(errs, field.Invalid(at.Child("key"), annotation.Key, msg))
		}
		if seen.Has(annotation.Key) {
			errs = append(errs, field.Duplicate(at.Child("key"), annotation.Key))
		}
		seen.Insert(annotation.Key)
		errs = append(errs, requireExpression(annotation.ValueExpression, at.Child("valueExpression"))...)
		if len(annotation.ValueExpression) > maxValueExpression {
			errs = append(errs, field.TooLong(at.Child("valueExpression"), "", maxValueExpression))
		}
	}
	return errs
}

func validatingBindingStorage(k kind, g generics) (stores, error) {
	type binding = *admissionv1.ValidatingAdmissionPolicyBinding
	return bindingStorage(k, g, bindingKind[binding]{
		singular: "validatingadmissionpolicybinding",
		spec: func(b binding) bindingSpec {
			return bindingSpec{b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources}
		},
		desired: func(b binding) any { return b.Spec },
		validate: func(b binding, p *field.Path) field.ErrorList {
			return validateActions(b.Spec.ValidationActions, p.Child("validationActions"))
		},
	})
}

func validateActions(actions []admissionv1.ValidationAction, p *field.Path) field.ErrorList {
	if len(actions) == 0 {
		return field.ErrorList{field.Required(p, "at least one validation action is required")}
	}
	var errs field.ErrorList
	seen := sets.New[admissionv1.ValidationAction]()
	for i, action := range actions {
		errs = append(errs, oneOf(action, p.Index(i), admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)...)
		if seen.Has(action) {
			errs = append(errs, field.Duplicate(p.Index(i), action))
		}
		seen.Insert(action)
	}
	if slices.Contains(actions, admissionv1.Deny) && slices.Contains(actions, admissionv1.Warn) {
		errs = append(errs, field.Invalid(p, actions, "must not contain both Deny and Warn: a denied request needs no warning"))
	}
	return errs
}
