package builtin

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// reviewREST answers reviews, which are created and never stored.
type reviewREST[P object] struct {
	newObject  func() runtime.Object
	kind       schema.GroupKind
	singular   string
	namespaced bool
	validate   func(P) field.ErrorList
	// answer fills in the review's status.
	answer func(ctx context.Context, review P) error
}

var (
	_ rest.Creater              = &reviewREST[object]{}
	_ rest.Scoper               = &reviewREST[object]{}
	_ rest.SingularNameProvider = &reviewREST[object]{}
)

func newReview[P object](k kind, singular string, validate func(P) field.ErrorList, answer func(context.Context, P) error) *reviewREST[P] {
	return &reviewREST[P]{
		newObject: newOf(k.versions[0].object),
		kind:      schema.GroupKind{Group: k.Group, Kind: k.Kind},
		singular:  singular,
		validate:  validate,
		answer:    answer,
	}
}

// New implements rest.Storage.
func (r *reviewREST[P]) New() runtime.Object { return r.newObject() }

// Destroy implements rest.Storage.
func (r *reviewREST[P]) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (r *reviewREST[P]) NamespaceScoped() bool { return r.namespaced }

// GetSingularName implements rest.SingularNameProvider.
func (r *reviewREST[P]) GetSingularName() string { return r.singular }

// Create implements rest.Creater.
func (r *reviewREST[P]) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(P)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", r.kind.Kind, obj))
	}
	if r.validate != nil {
		if errs := r.validate(review); len(errs) > 0 {
			return nil, apierrors.NewInvalid(r.kind, "", errs)
		}
	}
	if r.namespaced {
		if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(request.NamespaceValue(ctx), review); err != nil {
			return nil, err
		}
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.answer(ctx, review); err != nil {
		return nil, err
	}
	return review, nil
}

// requester returns who made the request.
func requester(ctx context.Context) (user.Info, error) {
	info, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return info, nil
}

func selfSubjectReviewStorage(k kind, _ generics) (stores, error) {
	answer := func(ctx context.Context, review *authenticationv1.SelfSubjectReview) error {
		info, err := requester(ctx)
		if err != nil {
			return err
		}
		extra := map[string]authenticationv1.ExtraValue{}
		for key, values := range info.GetExtra() {
			extra[key] = values
		}
		review.Status.UserInfo = authenticationv1.UserInfo{
			Username: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Extra: extra,
		}
		return nil
	}
	return stores{"": newReview(k, "selfsubjectreview", nil, answer)}, nil
}

func selfSubjectAccessReviewStorage(k kind, g generics) (stores, error) {
	type review = *authorizationv1.SelfSubjectAccessReview
	validate := func(r review) field.ErrorList {
		return validateAccess(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	}
	answer := func(ctx context.Context, r review) error {
		info, err := requester(ctx)
		if err != nil {
			return err
		}
		r.Status = decide(ctx, g.deps.Authorizer, attributesOf(info, r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes))
		return nil
	}
	return stores{"": newReview(k, "selfsubjectaccessreview", validate, answer)}, nil
}

func subjectAccessReviewStorage(k kind, g generics) (stores, error) {
	type review = *authorizationv1.SubjectAccessReview
	validate := func(r review) field.ErrorList { return validateSubjectAccess(&r.Spec) }
	answer := func(ctx context.Context, r review) error {
		r.Status = decide(ctx, g.deps.Authorizer, attributesOf(subject(&r.Spec), r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes))
		return nil
	}
	return stores{"": newReview(k, "subjectaccessreview", validate, answer)}, nil
}

func localSubjectAccessReviewStorage(k kind, g generics) (stores, error) {
	type review = *authorizationv1.LocalSubjectAccessReview
	validate := func(r review) field.ErrorList {
		errs := validateSubjectAccess(&r.Spec)
		if r.Spec.NonResourceAttributes != nil {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "nonResourceAttributes"), "disallowed on this kind of request"))
		}
		if r.Spec.ResourceAttributes != nil && r.Spec.ResourceAttributes.Namespace != r.Namespace {
			errs = append(errs, field.Invalid(field.NewPath("spec", "resourceAttributes", "namespace"),
				r.Spec.ResourceAttributes.Namespace, "must match metadata.namespace"))
		}
		return errs
	}
	answer := func(ctx context.Context, r review) error {
		r.Status = decide(ctx, g.deps.Authorizer, attributesOf(subject(&r.Spec), r.Spec.ResourceAttributes, nil))
		return nil
	}
	local := newReview(k, "localsubjectaccessreview", validate, answer)
	local.namespaced = true
	return stores{"": local}, nil
}

func selfSubjectRulesReviewStorage(k kind, g generics) (stores, error) {
	type review = *authorizationv1.SelfSubjectRulesReview
	validate := func(r review) field.ErrorList {
		if r.Spec.Namespace == "" {
			return field.ErrorList{field.Required(field.NewPath("spec", "namespace"), "no namespace on request")}
		}
		return nil
	}
	answer := func(ctx context.Context, r review) error {
		info, err := requester(ctx)
		if err != nil {
			return err
		}
		r.Status = rulesFor(ctx, g.deps.Rules, info, r.Spec.Namespace)
		return nil
	}
	return stores{"": newReview(k, "selfsubjectrulesreview", validate, answer)}, nil
}

func rulesFor(ctx context.Context, rules authorizer.RuleResolver, info user.Info, namespace string) authorizationv1.SubjectRulesReviewStatus {
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: true,
	}
	if rules == nil {
		status.EvaluationError = "the server's authorizer does not list rules"
		return status
	}
	resources, paths, incomplete, err := rules.RulesFor(ctx, info, namespace)
	if err != nil {
		status.EvaluationError = err.Error()
	}
	status.Incomplete = incomplete
	for _, rule := range resources {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: rule.GetVerbs(), APIGroups: rule.GetAPIGroups(), Resources: rule.GetResources(), ResourceNames: rule.GetResourceNames(),
		})
	}
	for _, rule := range paths {
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: rule.GetVerbs(), NonResourceURLs: rule.GetNonResourceURLs(),
		})
	}
	return status
}
