package roles

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
)

// Ensure creates roles and bindings, and adds what is missing in existing ones. As with Kubernetes' own roles,
// additions by users or by servers of another build stay, and a role or binding with the annotation
// rbac.authorization.kubernetes.io/autoupdate: "false" is not changed. View is not included: no controller needs it.
// changed says that something was created or added.
func Ensure(kube kubernetes.Interface) (changed bool, err error) {
	var errs []error
	for _, r := range All {
		some, err := r.ensure(kube)
		if changed = changed || some; err != nil {
			errs = append(errs, fmt.Errorf("permissions of %s: %w", r.User(), err))
		}
	}
	return changed, errors.Join(errs...)
}

// EnsureView makes View in the same way.
func EnsureView(kube kubernetes.Interface) error {
	view := reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: View.DeepCopy()},
		Client:  reconciliation.ClusterRoleModifier{Client: kube.RbacV1().ClusterRoles()},
		Confirm: true,
	}
	if _, err := view.Run(); err != nil {
		return fmt.Errorf("ClusterRole %s: %w", View.Name, err)
	}
	return nil
}

func (r Role) ensure(kube kubernetes.Interface) (changed bool, err error) {
	var errs []error
	meta := metav1.ObjectMeta{Name: r.objectName(), Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "concord-" + r.Name}}
	ensure := func(role reconciliation.ReconcileRoleOptions, binding reconciliation.ReconcileRoleBindingOptions) {
		role.Confirm, binding.Confirm = true, true
		made, roleErr := role.Run()
		bound, bindingErr := binding.Run()
		changed = changed || roleErr == nil && !made.Protected && made.Operation != reconciliation.ReconcileNone ||
			bindingErr == nil && !bound.Protected && bound.Operation != reconciliation.ReconcileNone
		errs = append(errs, roleErr, bindingErr)
	}
	rbac, namespaces := kube.RbacV1(), kube.CoreV1().Namespaces()
	if len(r.anywhere) > 0 {
		ensure(reconciliation.ReconcileRoleOptions{
			Role:   reconciliation.ClusterRoleRuleOwner{ClusterRole: &rbacv1.ClusterRole{ObjectMeta: meta, Rules: r.anywhere}},
			Client: reconciliation.ClusterRoleModifier{Client: rbac.ClusterRoles()},
		}, reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &rbacv1.ClusterRoleBinding{
				ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			}},
			Client: reconciliation.ClusterRoleBindingClientAdapter{Client: rbac.ClusterRoleBindings()},
		})
	}
	for namespace, rules := range r.in {
		local := meta
		local.Namespace = namespace
		ensure(reconciliation.ReconcileRoleOptions{
			Role:   reconciliation.RoleRuleOwner{Role: &rbacv1.Role{ObjectMeta: local, Rules: rules}},
			Client: reconciliation.RoleModifier{Client: rbac, NamespaceClient: namespaces},
		}, reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: &rbacv1.RoleBinding{
				ObjectMeta: local, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local.Name},
			}},
			Client: reconciliation.RoleBindingClientAdapter{Client: rbac, NamespaceClient: namespaces},
		})
	}
	return changed, errors.Join(errs...)
}

// Granted returns an error unless the server's authorizer lets the controller do all that it does:
// roles reach it with a delay.
func (r Role) Granted(ctx context.Context, kube kubernetes.Interface) error {
	for _, asked := range r.asks() {
		review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: r.User(), Groups: append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated), ResourceAttributes: &asked,
		}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("a SubjectAccessReview failed: %w", err)
		}
		if !review.Status.Allowed {
			return fmt.Errorf("it may not %s %s", asked.Verb, schema.GroupResource{Group: asked.Group, Resource: asked.Resource})
		}
	}
	return nil
}

// asks has one request for each rule.
func (r Role) asks() []authorizationv1.ResourceAttributes {
	var asked []authorizationv1.ResourceAttributes
	ask := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			a := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0]}
			a.Resource, a.Subresource, _ = strings.Cut(rule.Resources[0], "/")
			if len(rule.ResourceNames) > 0 {
				a.Name = rule.ResourceNames[0]
			}
			asked = append(asked, a)
		}
	}
	ask("", r.anywhere)
	for namespace, rules := range r.in {
		ask(namespace, rules)
	}
	return asked
}
