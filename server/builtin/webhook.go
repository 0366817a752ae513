package builtin

import (
	"context"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/utils/ptr"
)

const (
	defaultWebhookTimeout = 10 // seconds
	maxWebhookTimeout     = 30 // seconds
	defaultWebhookPort    = 443
)

func validatingWebhookStorage(k kind, g generics) (stores, error) {
	type configuration = *admissionv1.ValidatingWebhookConfiguration
	return webhookStorage(k, g, "validatingwebhookconfiguration", func(c configuration) []hook {
		var hooks []hook
		for i := range c.Webhooks {
			hooks = append(hooks, validatingHook(&c.Webhooks[i]))
		}
		return hooks
	}, func(c configuration) any { return c.Webhooks })
}

func mutatingWebhookStorage(k kind, g generics) (stores, error) {
	type configuration = *admissionv1.MutatingWebhookConfiguration
	return webhookStorage(k, g, "mutatingwebhookconfiguration", func(c configuration) []hook {
		var hooks []hook
		for i := range c.Webhooks {
			hooks = append(hooks, mutatingHook(&c.Webhooks[i]))
		}
		return hooks
	}, func(c configuration) any { return c.Webhooks })
}

func webhookStorage[P object](k kind, g generics, singular string, hooks func(P) []hook, desired func(P) any) (stores, error) {
	s := newStrategy[P](false)
	s.validate = func(_ context.Context, c P) field.ErrorList {
		return append(validateHooks(hooks(c)), g.expressions.checkWebhooks(hookExpressions(hooks(c)), nil)...)
	}
	s.validateUpdate = func(_ context.Context, c, old P) field.ErrorList {
		return append(validateHooks(hooks(c)), g.expressions.checkWebhooks(hookExpressions(hooks(c)), hookExpressions(hooks(old)))...)
	}
	withGeneration(s, desired)
	store, err := newREST(k, g, s, traits[P]{
		singular:   singular,
		categories: apiExtensions,
		columns: []column[P]{{name: "Webhooks", typ: "integer", description: "The number of webhooks.",
			cell: func(c P, _ time.Time) any { return int64(len(hooks(c))) }}},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// hook holds the fields that validating and mutating webhooks have in common, by
// reference, so that one function defaults and one validates both.
type hook struct {
	name           string
	clientConfig   *admissionv1.WebhookClientConfig
	rules          []admissionv1.RuleWithOperations
	failurePolicy  **admissionv1.FailurePolicyType
	matchPolicy    **admissionv1.MatchPolicyType
	namespaces     **metav1.LabelSelector
	objects        **metav1.LabelSelector
	sideEffects    *admissionv1.SideEffectClass
	timeout        **int32
	reviewVersions []string
	conditions     []admissionv1.MatchCondition
	// reinvocation is nil for a validating webhook.
	reinvocation **admissionv1.ReinvocationPolicyType
}

func validatingHook(w *admissionv1.ValidatingWebhook) hook {
	return hook{
		name: w.Name, clientConfig: &w.ClientConfig, rules: w.Rules, failurePolicy: &w.FailurePolicy,
		matchPolicy: &w.MatchPolicy, namespaces: &w.NamespaceSelector, objects: &w.ObjectSelector,
		sideEffects: w.SideEffects, timeout: &w.TimeoutSeconds, reviewVersions: w.AdmissionReviewVersions,
		conditions: w.MatchConditions,
	}
}

func mutatingHook(w *admissionv1.MutatingWebhook) hook {
	return hook{
		name: w.Name, clientConfig: &w.ClientConfig, rules: w.Rules, failurePolicy: &w.FailurePolicy,
		matchPolicy: &w.MatchPolicy, namespaces: &w.NamespaceSelector, objects: &w.ObjectSelector,
		sideEffects: w.SideEffects, timeout: &w.TimeoutSeconds, reviewVersions: w.AdmissionReviewVersions,
		conditions: w.MatchConditions, reinvocation: &w.ReinvocationPolicy,
	}
}

func defaultValidatingWebhooks(c *admissionv1.ValidatingWebhookConfiguration) {
	for i := range c.Webhooks {
		defaultHook(validatingHook(&c.Webhooks[i]))
	}
}

func defaultMutatingWebhooks(c *admissionv1.MutatingWebhookConfiguration) {
	for i := range c.Webhooks {
		defaultHook(mutatingHook(&c.Webhooks[i]))
	}
}

func defaultHook(h hook) {
	orDefault(h.failurePolicy, admissionv1.Fail)
	orDefault(h.matchPolicy, admissionv1.Equivalent)
	orDefault(h.timeout, defaultWebhookTimeout)
	defaultSelectors(h.namespaces, h.objects)
	if h.reinvocation != nil {
		orDefault(h.reinvocation, admissionv1.NeverReinvocationPolicy)
	}
	if h.clientConfig.Service != nil {
		orDefault(&h.clientConfig.Service.Port, defaultWebhookPort)
	}
	for i := range h.rules {
		defaultRule(&h.rules[i].Rule)
	}
}

func orDefault[T any](value **T, otherwise T) {
	if *value == nil {
		*value = &otherwise
	}
}

func validateHooks(hooks []hook) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, h := range hooks {
		p := field.NewPath("webhooks").Index(i)
		errs = append(errs, validateHook(h, p)...)
		if seen.Has(h.name) {
			errs = append(errs, field.Duplicate(p.Child("name"), h.name))
		}
		seen.Insert(h.name)
	}
	return errs
}

func validateHook(h hook, p *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(p.Child("name"), h.name)
	errs = append(errs, validateReviewVersions(h.reviewVersions, p.Child("admissionReviewVersions"))...)
	for i, rule := range h.rules {
		errs = append(errs, validateRule(rule, p.Child("rules").Index(i))...)
	}
	if policy := *h.failurePolicy; policy != nil {
		errs = append(errs, oneOf(*policy, p.Child("failurePolicy"), admissionv1.Ignore, admissionv1.Fail)...)
	}
	errs = append(errs, validateMatchPolicy(*h.matchPolicy, p.Child("matchPolicy"))...)
	if h.sideEffects == nil {
		errs = append(errs, field.Required(p.Child("sideEffects"), "must specify one of None, NoneOnDryRun"))
	} else {
		errs = append(errs, oneOf(*h.sideEffects, p.Child("sideEffects"), admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun)...)
	}
	if timeout := *h.timeout; timeout != nil && (*timeout < 1 || *timeout > maxWebhookTimeout) {
		errs = append(errs, field.Invalid(p.Child("timeoutSeconds"), *timeout, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validateSelector(*h.namespaces, p.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(*h.objects, p.Child("objectSelector"))...)
	if h.reinvocation != nil && *h.reinvocation != nil {
		errs = append(errs, oneOf(**h.reinvocation, p.Child("reinvocationPolicy"),
			admissionv1.NeverReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy)...)
	}
	errs = append(errs, validateClientConfig(h.clientConfig, p.Child("clientConfig"))...)
	return append(errs, validateMatchConditions(h.conditions, p.Child("matchConditions"))...)
}

func hookExpressions(hooks []hook) []expression {
	var list []expression
	for i, h := range hooks {
		declared := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
		list = append(list, matchExpressions(h.conditions, declared, field.NewPath("webhooks").Index(i).Child("matchConditions"))...)
	}
	return list
}

func validateReviewVersions(versions []string, p *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(p, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, version := range versions {
		for _, msg := range utilvalidation.IsDNS1035Label(version) {
			errs = append(errs, field.Invalid(p.Index(i), version, msg))
		}
		if seen.Has(version) {
			errs = append(errs, field.Invalid(p.Index(i), version, "duplicate version"))
		}
		seen.Insert(version)
	}
	known := []string{"v1", "v1beta1"}
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(known, v) }) {
		errs = append(errs, field.Invalid(p, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

func validateClientConfig(c *admissionv1.WebhookClientConfig, p *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(p, "exactly one of url or service is required")}
	case c.URL != nil:
		return webhook.ValidateWebhookURL(p.Child("url"), *c.URL, true)
	}
	service := c.Service
	return webhook.ValidateWebhookService(p.Child("service"), service.Namespace, service.Name, service.Path, ptr.Deref(service.Port, defaultWebhookPort))
}
