package builtin

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// What admission webhooks and policies share: which requests they match.

const (
	all = "*"
	// maxMatchConditions is the most match conditions that a webhook or policy may have.
	maxMatchConditions = 64
)

func defaultMatchResources(m *admissionv1.MatchResources) {
	if m.MatchPolicy == nil {
		m.MatchPolicy = ptr.To(admissionv1.Equivalent)
	}
	defaultSelectors(&m.NamespaceSelector, &m.ObjectSelector)
	for i := range m.ResourceRules {
		defaultRule(&m.ResourceRules[i].Rule)
	}
	for i := range m.ExcludeResourceRules {
		defaultRule(&m.ExcludeResourceRules[i].Rule)
	}
}

func defaultSelectors(selectors ...**metav1.LabelSelector) {
	for _, selector := range selectors {
		if *selector == nil {
			*selector = &metav1.LabelSelector{}
		}
	}
}

func defaultRule(rule *admissionv1.Rule) {
	if rule.Scope == nil {
		rule.Scope = ptr.To(admissionv1.AllScopes)
	}
}

// validateMatchResources checks what a policy or binding matches.
func validateMatchResources(m *admissionv1.MatchResources, p *field.Path) field.ErrorList {
	errs := validateMatchPolicy(m.MatchPolicy, p.Child("matchPolicy"))
	errs = append(errs, validateSelector(m.NamespaceSelector, p.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(m.ObjectSelector, p.Child("objectSelector"))...)
	for i, rule := range m.ResourceRules {
		errs = append(errs, validateNamedRule(rule, p.Child("resourceRules").Index(i))...)
	}
	for i, rule := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(rule, p.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func validateMatchPolicy(policy *admissionv1.MatchPolicyType, p *field.Path) field.ErrorList {
	if policy == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	return oneOf(*policy, p, admissionv1.Exact, admissionv1.Equivalent)
}

func validateSelector(selector *metav1.LabelSelector, p *field.Path) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, p)
}

// oneOf says that a value is not among those allowed.
func oneOf[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, value, allowed)}
}

func validateNamedRule(rule admissionv1.NamedRuleWithOperations, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, name := range rule.ResourceNames {
		at := p.Child("resourceNames").Index(i)
		for _, msg := range path.ValidatePathSegmentName(name, false) {
			errs = append(errs, field.Invalid(at, name, msg))
		}
		if names.Has(name) {
			errs = append(errs, field.Duplicate(at, name))
		}
		names.Insert(name)
	}
	return append(errs, validateRule(rule.RuleWithOperations, p)...)
}

func validateRule(rule admissionv1.RuleWithOperations, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	operations := make([]string, len(rule.Operations))
	for i, operation := range rule.Operations {
		operations[i] = string(operation)
		errs = append(errs, oneOf(operation, p.Child("operations").Index(i),
			admissionv1.OperationAll, admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect)...)
	}
	errs = append(errs, validateWildcardList(operations, p.Child("operations"), true)...)
	errs = append(errs, validateWildcardList(rule.APIGroups, p.Child("apiGroups"), true)...)
	errs = append(errs, validateWildcardList(rule.APIVersions, p.Child("apiVersions"), false)...)
	errs = append(errs, validateRuleResources(rule.Resources, p.Child("resources"))...)
	if rule.Scope != nil {
		errs = append(errs, oneOf(*rule.Scope, p.Child("scope"),
			admissionv1.ClusterScope, admissionv1.NamespacedScope, admissionv1.AllScopes)...)
	}
	return errs
}

// validateWildcardList: the list is not empty, and "*" stands alone.
func validateWildcardList(values []string, p *field.Path, allowEmpty bool) field.ErrorList {
	var errs field.ErrorList
	if len(values) == 0 {
		errs = append(errs, field.Required(p, ""))
	}
	if len(values) > 1 && slices.Contains(values, all) {
		errs = append(errs, field.Invalid(p, values, "if '*' is present, must not specify other values"))
	}
	for i, value := range values {
		if value == "" && !allowEmpty {
			errs = append(errs, field.Required(p.Index(i), ""))
		}
	}
	return errs
}

// validateRuleResources: a wildcard that covers another entry makes that one an error.
func validateRuleResources(resources []string, p *field.Path) field.ErrorList {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	listed := sets.New(resources...)
	for i, entry := range resources {
		at := p.Index(i)
		resource, subresource, hasSubresource := strings.Cut(entry, "/")
		switch {
		case entry == "":
			errs = append(errs, field.Required(at, ""))
		case entry == "*/*" && len(resources) > 1:
			errs = append(errs, field.Invalid(p, resources, "if '*/*' is present, must not specify other resources"))
		case entry == "*/*":
		case hasSubresource && subresource != all && listed.Has("*/"+subresource) && resource != all:
			errs = append(errs, field.Invalid(at, entry, fmt.Sprintf("if '*/%s' is present, must not specify %s", subresource, entry)))
		case hasSubresource && subresource != all && listed.Has(resource+"/*"):
			errs = append(errs, field.Invalid(at, entry, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, entry)))
		case !hasSubresource && resource != all && listed.Has(all):
			errs = append(errs, field.Invalid(at, entry, "if '*' is present, must not specify other resources without subresources"))
		}
	}
	return errs
}

// validateMatchConditions checks names and that there are expressions, which are compiled
// elsewhere.
func validateMatchConditions(conditions []admissionv1.MatchCondition, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxMatchConditions {
		errs = append(errs, field.TooMany(p, len(conditions), maxMatchConditions))
	}
	seen := sets.New[string]()
	for i, condition := range conditions {
		at := p.Index(i)
		errs = append(errs, requireExpression(condition.Expression, at.Child("expression"))...)
		switch {
		case condition.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case seen.Has(condition.Name):
			errs = append(errs, field.Duplicate(at.Child("name"), condition.Name))
		default:
			for _, msg := range utilvalidation.IsQualifiedName(condition.Name) {
				errs = append(errs, field.Invalid(at.Child("name"), condition.Name, msg))
			}
		}
		seen.Insert(condition.Name)
	}
	return errs
}
