package builtin

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
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

// A policyKind is what one kind of policies has beyond what policies have in common.
type policyKind[P object] struct {
	singular string
	// steps prints how many things a policy does.
	steps column[P]
	// spec returns what policies have in common, and desired the whole spec.
	spec    func(P) policySpec
	desired func(P) any
	// validate checks what the kind has of its own, and expressions returns those in it.
	validate    func(P, *field.Path) field.ErrorList
	expressions func(P, plugincel.OptionalVariableDeclarations, *field.Path) []expression
}

// policyStorage completes the strategy of a kind of policies and makes its storage.
func policyStorage[P object](k kind, g generics, s *strategy[P], t policyKind[P]) (*resourceREST, error) {
	at := field.NewPath("spec")
	expressions := func(p P) []expression {
		spec := t.spec(p)
		return append(spec.expressions(at), t.expressions(p, spec.declared(), at)...)
	}
	validate := func(p P) field.ErrorList {
		return append(validatePolicySpec(t.spec(p), at), t.validate(p, at)...)
	}
	s.validate = func(_ context.Context, p P) field.ErrorList {
		return append(validate(p), g.expressions.checkPolicy(expressions(p), nil)...)
	}
	s.validateUpdate = func(_ context.Context, p, old P) field.ErrorList {
		return append(validate(p), g.expressions.checkPolicy(expressions(p), expressions(old))...)
	}
	withGeneration(s, t.desired)
	return newREST(k, g, s, traits[P]{
		singular:   t.singular,
		categories: apiExtensions,
		columns: []column[P]{t.steps, {
			name: "ParamKind", typ: "string", description: "The kind of resources that parameterize the policy.",
			cell: func(p P, _ time.Time) any { return printParamKind(t.spec(p).paramKind) },
		}},
	})
}

// policySpec is what the specs of both kinds of policies have in common.
type policySpec struct {
	paramKind       *admissionv1.ParamKind
	matchResources  *admissionv1.MatchResources
	matchConditions []admissionv1.MatchCondition
	variables       []admissionv1.Variable
	failurePolicy   *admissionv1.FailurePolicyType
}

// declared are the variables that a policy's expressions may name.
func (s policySpec) declared() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasParams: s.paramKind != nil, HasAuthorizer: true}
}

func (s policySpec) expressions(p *field.Path) []expression {
	var list []expression
	for i, v := range s.variables {
		accessor := &validating.Variable{Name: v.Name, Expression: v.Expression}
		list = append(list, expression{accessor, p.Child("variables").Index(i).Child("expression"), s.declared()})
	}
	return append(list, matchExpressions(s.matchConditions, s.declared(), p.Child("matchConditions"))...)
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
		errs = append(errs, requireExpression(variable.Expression, at.Child("expression"))...)
	}
	return errs
}

func validateConditions(conditions []metav1.Condition) field.ErrorList {
	return metav1validation.ValidateConditions(conditions, field.NewPath("status", "conditions"))
}

// A bindingKind is what one kind of bindings has beyond what bindings have in common.
type bindingKind[P object] struct {
	singular string
	// spec returns what bindings have in common, and desired the whole spec.
	spec    func(P) bindingSpec
	desired func(P) any
	// validate checks what the kind has of its own; nil: it has nothing.
	validate func(P, *field.Path) field.ErrorList
}

func bindingStorage[P object](k kind, g generics, t bindingKind[P]) (stores, error) {
	s := newStrategy[P](false)
	s.validate = func(_ context.Context, b P) field.ErrorList {
		p := field.NewPath("spec")
		errs := validateBindingSpec(t.spec(b), p)
		if t.validate != nil {
			errs = append(errs, t.validate(b, p)...)
		}
		return errs
	}
	withGeneration(s, t.desired)
	store, err := newREST(k, g, s, traits[P]{
		singular:   t.singular,
		categories: apiExtensions,
		columns: []column[P]{
			{name: "PolicyName", typ: "string", description: "The policy that is bound.",
				cell: func(b P, _ time.Time) any { return t.spec(b).policyName }},
			{name: "ParamRef", typ: "string", description: "The parameters that the policy is bound with.",
				cell: func(b P, _ time.Time) any { return printParamRef(t.spec(b).param) }},
		},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// bindingSpec is what the specs of both kinds of bindings have in common.
type bindingSpec struct {
	policyName string
	param      *admissionv1.ParamRef
	match      *admissionv1.MatchResources
}

func validateBindingSpec(spec bindingSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.policyName == "" {
		errs = append(errs, field.Required(p.Child("policyName"), ""))
	} else {
		for _, msg := range validation.NameIsDNSSubdomain(spec.policyName, false) {
			errs = append(errs, field.Invalid(p.Child("policyName"), spec.policyName, msg))
		}
	}
	if spec.param != nil {
		errs = append(errs, validateParamRef(spec.param, p.Child("paramRef"))...)
	}
	if spec.match != nil {
		errs = append(errs, validateMatchResources(spec.match, p.Child("matchResources"))...)
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
