package builtin

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// What validating and mutating admission policies and their bindings share.

// apiExtensions is the category of what extends the API.
var apiExtensions = []string{"api-extensions"}

// withGeneration makes a strategy count changes of the desired state in
// metadata.generation.
func withGeneration[P object](s *strategy[P], desired func(P) any) {
	prepareCreate, prepareUpdate := s.prepareCreate, s.prepareUpdate
	s.prepareCreate = func(ctx context.Context, obj P) {
		if prepareCreate != nil {
			prepareCreate(ctx, obj)
		}
		obj.SetGeneration(1)
	}
	s.prepareUpdate = func(ctx context.Context, obj, old P) {
		if prepareUpdate != nil {
			prepareUpdate(ctx, obj, old)
		}
		if !equality.Semantic.DeepEqual(desired(obj), desired(old)) {
			obj.SetGeneration(old.GetGeneration() + 1)
		}
	}
}

func defaultPolicy(failure **admissionv1.FailurePolicyType, match *admissionv1.MatchResources) {
	if *failure == nil {
		*failure = ptr.To(admissionv1.Fail)
	}
	if match != nil {
		defaultMatchResources(match)
	}
}

// defaultBinding: parameterNotFoundAction has a default in v1alpha1 only.
func defaultBinding(version string, match *admissionv1.MatchResources, param *admissionv1.ParamRef) {
	if match != nil {
		defaultMatchResources(match)
	}
	if version == "v1alpha1" && param != nil && param.ParameterNotFoundAction == nil {
		param.ParameterNotFoundAction = ptr.To(admissionv1.DenyAction)
	}
}

// policySpec is what the specs of both kinds of policies have in common.
type policySpec struct {
	paramKind       *admissionv1.ParamKind
	matchResources  *admissionv1.MatchResources
	matchConditions []admissionv1.MatchCondition
	variables       []admissionv1.Variable
	failurePolicy   *admissionv1.FailurePolicyType
}

func validatePolicySpec(spec policySpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.failurePolicy == nil {
		errs = append(errs, field.Required(p.Child("failurePolicy"), ""))
	} else {
		errs = append(errs, oneOf(*spec.failurePolicy, p.Child("failurePolicy"), admissionv1.Ignore, admissionv1.Fail)...)
	}
	if spec.paramKind != nil {
		errs = append(errs, validateParamKind(*spec.paramKind, p.Child("paramKind"))...)
	}
	match := p.Child("matchConstraints")
	if spec.matchResources == nil {
		errs = append(errs, field.Required(match, ""))
	} else {
		errs = append(errs, validateMatchResources(spec.matchResources, match)...)
		if len(spec.matchResources.ResourceRules) == 0 {
			errs = append(errs, field.Required(match.Child("resourceRules"), ""))
		}
	}
	errs = append(errs, validateMatchConditions(spec.matchConditions, p.Child("matchConditions"))...)
	return append(errs, validateVariables(spec.variables, p.Child("variables"))...)
}

func validateParamKind(kind admissionv1.ParamKind, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if kind.APIVersion == "" {
		errs = append(errs, field.Required(p.Child("apiVersion"), ""))
	} else if gv, err := schema.ParseGroupVersion(kind.APIVersion); err != nil {
		errs = append(errs, field.Invalid(p.Child("apiVersion"), kind.APIVersion, err.Error()))
	} else {
		if gv.Group != "" {
			for _, msg := range utilvalidation.IsDNS1123Subdomain(gv.Group) {
				errs = append(errs, field.Invalid(p.Child("apiVersion"), kind.APIVersion, msg))
			}
		}
		for _, msg := range utilvalidation.IsDNS1035Label(gv.Version) {
			errs = append(errs, field.Invalid(p.Child("apiVersion"), kind.APIVersion, msg))
		}
	}
	if kind.Kind == "" {
		errs = append(errs, field.Required(p.Child("kind"), ""))
	} else if msgs := utilvalidation.IsDNS1035Label(strings.ToLower(kind.Kind)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(p.Child("kind"), kind.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

var celIdentifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)

func validateVariables(variables []admissionv1.Variable, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, variable := range variables {
		at := p.Index(i)
		switch {
		case variable.Name == "":
			errs = append(errs, field.Required(at.Child("name"), "name is not specified"))
		case !celIdentifier.MatchString(variable.Name):
			errs = append(errs, field.Invalid(at.Child("name"), variable.Name, "name is not a valid CEL identifier"))
		case seen.Has(variable.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), variable.Name))
		}
		seen.Insert(variable.Name)
		errs = append(errs, validateExpression(variable.Expression, at.Child("expression"))...)
	}
	return errs
}

func validateConditions(conditions []metav1.Condition) field.ErrorList {
	return metav1validation.ValidateConditions(conditions, field.NewPath("status", "conditions"))
}

// validateBinding checks what the specs of both kinds of bindings have in common.
func validateBinding(policyName string, param *admissionv1.ParamRef, match *admissionv1.MatchResources, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policyName == "" {
		errs = append(errs, field.Required(p.Child("policyName"), ""))
	} else {
		for _, msg := range validation.NameIsDNSSubdomain(policyName, false) {
			errs = append(errs, field.Invalid(p.Child("policyName"), policyName, msg))
		}
	}
	if param != nil {
		errs = append(errs, validateParamRef(param, p.Child("paramRef"))...)
	}
	if match != nil {
		errs = append(errs, validateMatchResources(match, p.Child("matchResources"))...)
	}
	return errs
}

func validateParamRef(ref *admissionv1.ParamRef, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(p, "one of name or selector must be specified"))
	case ref.Name != "" && ref.Selector != nil:
		errs = append(errs, field.Forbidden(p.Child("name"), "name and selector are mutually exclusive"))
	case ref.Selector != nil:
		errs = append(errs, metav1validation.ValidateLabelSelector(ref.Selector, metav1validation.LabelSelectorValidationOptions{}, p.Child("selector"))...)
	default:
		for _, msg := range validation.NameIsDNSSubdomain(ref.Name, false) {
			errs = append(errs, field.Invalid(p.Child("name"), ref.Name, msg))
		}
	}
	if ref.ParameterNotFoundAction == nil {
		return append(errs, field.Required(p.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, oneOf(*ref.ParameterNotFoundAction, p.Child("parameterNotFoundAction"),
		admissionv1.AllowAction, admissionv1.DenyAction)...)
}

func printParamKind(kind *admissionv1.ParamKind) string {
	if kind == nil {
		return "<unset>"
	}
	return kind.APIVersion + "/" + kind.Kind
}

func printParamRef(ref *admissionv1.ParamRef) string {
	if ref == nil {
		return "<unset>"
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = all
	}
	switch {
	case ref.Name != "":
		return namespace + "/" + ref.Name
	case ref.Selector != nil:
		return fmt.Sprintf("%s/%s", namespace, metav1.FormatLabelSelector(ref.Selector))
	}
	return namespace + "/" + all
}
