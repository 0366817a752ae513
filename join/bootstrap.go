package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/controller/owncrds"
	"github.com/concord-dev/concord/workers"
)

const (
	bootstrapRetry = 500 * time.Millisecond
	// ownCRDsCheck is how often it is looked whether the own definitions are still there.
	ownCRDsCheck = 5 * time.Second
	// permissionPoll is how often it is asked whether the controllers may begin.
	permissionPoll = 100 * time.Millisecond
)

// bootstrap is the post-start hook that makes what the controllers need: their definitions
// and their permissions. Definitions that somebody deletes are made again as long as the
// server runs: what they held is forgotten, so that everything is proven anew.
func (j *Join) bootstrap(hook genericapiserver.PostStartHookContext) error {
	go workers.Loop(hook, "bootstrap", j.keepOwn)
	return nil
}

// keepOwn makes the own objects until ctx ends.
func (j *Join) keepOwn(ctx context.Context) {
	if j.ensureOwn(ctx) != nil || j.awaitOwnCRDs(ctx) != nil {
		return // ctx has ended
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if j.lacksOwnCRD() {
			klog.FromContext(ctx).Info("A definition of Concord's own was deleted and is made again: all that is stored will be proven anew")
			_ = j.ensureOwn(ctx) // ends with ctx
		}
	}, ownCRDsCheck)
}

// ensureOwn tries until it succeeds or ctx ends, since at first the server's own and other
// servers' gates may be closed.
func (j *Join) ensureOwn(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(ctx context.Context) (bool, error) {
		last = owncrds.Install(ctx, j.clients.objects, j.ownCRDs())
		if user := j.config.ControllerUser; user != "" {
			last = errors.Join(last, ensurePermissions(ctx, j.clients.kube, user))
		}
		if last != nil {
			klog.FromContext(ctx).V(2).Info("Concord's own objects cannot be made yet", "err", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// ownCRDs are the definitions that the server itself needs. Those of migrations stay where
// they are, but a server without migrations does not make them.
func (j *Join) ownCRDs() []*apiextensionsv1.CustomResourceDefinition {
	if j.config.Silent {
		return versionv1alpha1.CRDs()
	}
	return append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
}

func (j *Join) lacksOwnCRD() bool {
	for _, want := range j.ownCRDs() {
		if j.crds.get(schema.ParseGroupResource(want.Name)) == nil {
			return true
		}
	}
	return false
}

// awaitOwnCRDs returns when the server's own definitions are established, or ctx ends.
func (j *Join) awaitOwnCRDs(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) {
		for _, want := range j.ownCRDs() {
			crd := j.crds.get(schema.ParseGroupResource(want.Name))
			if crd == nil || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
				return false, nil
			}
		}
		return true, nil
	})
}

// awaitPermitted returns when the controllers may do what they do, or ctx ends.
func (j *Join) awaitPermitted(ctx context.Context) error {
	if j.config.ControllerUser == "" {
		return nil
	}
	asked := []authorizationv1.ResourceAttributes{
		{Verb: "list", Group: storageversion.Resource.Group, Resource: storageversion.Resource.Resource},
		{Verb: "create", Group: coordinationv1.GroupName, Resource: "leases", Namespace: storageversion.IdentityNamespace},
	}
	return wait.PollUntilContextCancel(ctx, permissionPoll, true, func(ctx context.Context) (bool, error) {
		for i := range asked {
			review, err := j.clients.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: j.config.ControllerUser, Groups: []string{user.AllAuthenticated}, ResourceAttributes: &asked[i]},
			}, metav1.CreateOptions{})
			if err != nil || !review.Status.Allowed {
				return false, nil //nolint:nilerr // it is asked again
			}
		}
		return true, nil
	})
}

// permissionsName is the name of the controllers' ClusterRole, Role and bindings.
const permissionsName = "concord:controllers"

// clusterRules are what the controllers may do anywhere. Each says what needs it.
func clusterRules() []rbacv1.PolicyRule {
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	return []rbacv1.PolicyRule{
		// The collector and the trigger.
		{APIGroups: []string{storageversion.Resource.Group}, Resources: []string{"storageversions", "storageversions/status"}, Verbs: all},
		{APIGroups: []string{migrationv1alpha1.GroupName}, Resources: []string{"*"}, Verbs: all},
		// The comparison of the servers' versions.
		{APIGroups: []string{versionv1alpha1.GroupName}, Resources: []string{"*"}, Verbs: all},
		// The mirror.
		{APIGroups: []string{"storagemigration.k8s.io"}, Resources: []string{"storageversionmigrations", "storageversionmigrations/status"}, Verbs: []string{"get", "list", "watch", "update", "patch"}},
		// A migration reads the definition, and prunes its storedVersions.
		{APIGroups: []string{apiextensionsv1.GroupName}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{apiextensionsv1.GroupName}, Resources: []string{"customresourcedefinitions/status"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: []string{"get"}},
		{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "update", "patch"}},
		// A migration through the API lists metadata and patches, as that of
		// kube-controller-manager may do too.
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "patch"}},
	}
}

// ensurePermissions lets user do what the controllers do, and nothing else.
func ensurePermissions(ctx context.Context, kube kubernetes.Interface, user string) error {
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	meta := metav1.ObjectMeta{Name: permissionsName}
	local := metav1.ObjectMeta{Name: permissionsName, Namespace: storageversion.IdentityNamespace}
	leases := []rbacv1.PolicyRule{{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}}}
	rbac := kube.RbacV1()
	role, err := rbac.ClusterRoles().Get(ctx, meta.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: clusterRules()}, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepEqual(role.Rules, clusterRules()):
		role.Rules = clusterRules()
		_, err = rbac.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	errs := []error{err}
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
	}, metav1.CreateOptions{})
	errs = append(errs, err)
	_, err = rbac.Roles(local.Namespace).Create(ctx, &rbacv1.Role{ObjectMeta: local, Rules: leases}, metav1.CreateOptions{})
	errs = append(errs, err)
	_, err = rbac.RoleBindings(local.Namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: local, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local.Name},
	}, metav1.CreateOptions{})
	errs = append(errs, err)
	for _, err := range errs {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("permissions of %s: %w", user, err)
		}
	}
	return nil
}
