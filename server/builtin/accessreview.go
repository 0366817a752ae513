package builtin

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// validateAccess: a review asks about exactly one of a resource and a path.
func validateAccess(resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) field.ErrorList {
	spec := field.NewPath("spec")
	switch {
	case resource != nil && path != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), path, "cannot be specified in combination with resourceAttributes")}
	case resource == nil && path == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), resource, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	case resource == nil:
		return nil
	}
	var errs field.ErrorList
	p := spec.Child("resourceAttributes")
	if s := resource.FieldSelector; s != nil && (s.RawSelector != "") == (len(s.Requirements) > 0) {
		errs = append(errs, field.Invalid(p.Child("fieldSelector"), s, "exactly one of rawSelector or requirements must be specified"))
	}
	if s := resource.LabelSelector; s != nil && (s.RawSelector != "") == (len(s.Requirements) > 0) {
		errs = append(errs, field.Invalid(p.Child("labelSelector"), s, "exactly one of rawSelector or requirements must be specified"))
	}
	return errs
}

func validateSubjectAccess(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAccess(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified"))
	}
	return errs
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	extra := map[string][]string{}
	for key, values := range spec.Extra {
		extra[key] = values
	}
	return &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: extra}
}

// attributesOf puts a review's question as the authorizer takes it.
func attributesOf(info user.Info, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) authorizer.AttributesRecord {
	if resource == nil {
		if path == nil {
			return authorizer.AttributesRecord{User: info}
		}
		return authorizer.AttributesRecord{User: info, Verb: path.Verb, Path: path.Path}
	}
	attributes := authorizer.AttributesRecord{
		User:            info,
		Verb:            resource.Verb,
		Namespace:       resource.Namespace,
		APIGroup:        resource.Group,
		APIVersion:      resource.Version,
		Resource:        resource.Resource,
		Subresource:     resource.Subresource,
		Name:            resource.Name,
		ResourceRequest: true,
	}
	if attributes.APIVersion == "" {
		attributes.APIVersion = all
	}
	if resource.FieldSelector != nil {
		attributes.FieldSelectorRequirements, attributes.FieldSelectorParsingErr = fieldRequirements(resource.FieldSelector)
	}
	if resource.LabelSelector != nil {
		attributes.LabelSelectorRequirements, attributes.LabelSelectorParsingErr = labelRequirements(resource.LabelSelector)
	}
	return attributes
}

// fieldRequirements are those an authorizer understands. One it does not is left out and
// named in the error: the request is then judged as if it selected more.
func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s.RawSelector != "" {
		selector, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return selector.Requirements(), nil
	}
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var requirements fields.Requirements
	var errs []error
	for _, r := range s.Requirements {
		operator, ok := operators[r.Operator]
		if !ok || len(r.Values) != 1 {
			errs = append(errs, fmt.Errorf("field requirement %s %s %v is not supported", r.Key, r.Operator, r.Values))
			continue
		}
		requirements = append(requirements, fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
	}
	return requirements, errors.Join(errs...)
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	selector, err := labels.Parse(s.RawSelector)
	if s.RawSelector == "" {
		selector, err = metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: s.Requirements})
	}
	if err != nil {
		return nil, err
	}
	requirements, _ := selector.Requirements()
	return requirements, nil
}

func decide(ctx context.Context, a authorizer.Authorizer, attributes authorizer.Attributes) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := a.Authorize(ctx, attributes)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}
