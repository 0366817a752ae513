// Package access lists which users may do what with the objects that the protocol depends on (StorageVersions,
// Leases, migrations and so on), for tests of every server of ours.
package access

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/join/roles"
)

// identity is a user, with groups.
type identity struct {
	name string
	user user.DefaultInfo
}

// namespace is the namespace in which the editor may edit.
const namespace = "team"

var (
	editor = identity{"editor of a namespace", person("editor")}
	viewer = identity{"viewer", person("viewer")}
	// everybody are the identities whose rights are examined on every server. Among them are all those of
	// Kubernetes' controllers in `concord server` (server/controllers).
	everybody = []identity{
		{"anonymous", user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}},
		// A user without the group that servers add to every authenticated user.
		{"no group", user.DefaultInfo{Name: "nobody"}},
		// This is also the user of a client certificate that names no groups.
		{"authenticated", person("stranger")},
		editor,
		viewer,
		controller("storage-version-migrator-controller"),
		controller("namespace-controller"),
		controller("generic-garbage-collector"),
		controller("resourcequota-controller"),
		controller("service-account-controller"),
		controller("root-ca-cert-publisher"),
		controller("kube-apiserver-serving-clustertrustbundle-publisher"),
		controller("clusterrole-aggregation-controller"),
		controller("certificate-controller"),
		controller("validatingadmissionpolicy-status-controller"),
		{"kube-controller-manager, for service accounts' tokens", person(user.KubeControllerManager)},
		{"masters", user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}},
	}
)

func person(name string) user.DefaultInfo {
	return user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
}

// controller returns the service account of one of Kubernetes' controllers.
func controller(name string) identity {
	return identity{name, user.DefaultInfo{
		Name:   serviceaccount.MakeUsername(metav1.NamespaceSystem, name),
		Groups: append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
	}}
}

var protected = []authorizationv1.ResourceAttributes{
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions"},
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions", Subresource: "status"},
	{Group: "migration.k8s.io", Resource: "storagestates"},
	{Group: "migration.k8s.io", Resource: "storagestates", Subresource: "status"},
	{Group: "migration.k8s.io", Resource: "storageversionmigrations"},
	{Group: "migration.k8s.io", Resource: "storageversionmigrations", Subresource: "status"},
	{Group: "coordination.k8s.io", Resource: "leases", Namespace: metav1.NamespaceSystem},
	{Group: "coordination.k8s.io", Resource: "leases", Namespace: metav1.NamespaceSystem, Name: roles.ControllersLock},
	{Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
	{Resource: "secrets", Namespace: namespace},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Subresource: "status"},
	{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"},
	{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations", Subresource: "status"},
	{Group: "concord.dev", Resource: "clusterversions"},
	{Group: "concord.dev", Resource: "clusterversions", Subresource: "status"},
	{Resource: "events", Namespace: metav1.NamespaceDefault},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
}

var (
	verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	paths = []string{"/concord/census/configmaps", "/metrics", "/readyz", "/version"}
)

// Check gives the editor and the viewer their roles, and compares what everybody may do on a server
// with a golden file. With CONCORD_UPDATE=1 it writes that file.
func Check(t *testing.T, client kubernetes.Interface, golden string) {
	t.Helper()
	if err := grant(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, time.Minute, "the bindings count", func(ctx context.Context) error { return granted(ctx, client) })
	allowed, err := table(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CONCORD_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(allowed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != allowed {
		t.Errorf("error %v; who may do what is\n%s\nwant\n%s", err, allowed, want)
	}
}

// all returns everybody and the service accounts of Concord's own controllers.
func all() []identity {
	var own []identity
	for _, r := range roles.All {
		own = append(own, controller("concord-"+r.Name))
	}
	return append(own, everybody...)
}

// table returns, for each identity, a line for each object or path with the verbs that the identity is allowed.
// Objects and paths without any are left out.
func table(ctx context.Context, client kubernetes.Interface) (string, error) {
	var told strings.Builder
	for _, who := range all() {
		fmt.Fprintf(&told, "%s\n", who.name)
		for _, what := range protected {
			var allowed []string
			for _, verb := range verbs {
				asked := what
				asked.Verb = verb
				may, err := who.may(ctx, client, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &asked})
				if err != nil {
					return "", err
				}
				if may {
					allowed = append(allowed, verb)
				}
			}
			if len(allowed) > 0 {
				fmt.Fprintf(&told, "  %s: %s\n", describe(what), strings.Join(allowed, " "))
			}
		}
		for _, path := range paths {
			may, err := who.may(ctx, client, authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"}})
			if err != nil {
				return "", err
			}
			if may {
				fmt.Fprintf(&told, "  %s: get\n", path)
			}
		}
	}
	return told.String(), nil
}

func (who identity) may(ctx context.Context, client kubernetes.Interface, what authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	what.User, what.Groups = who.user.Name, who.user.Groups
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: what}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

func describe(what authorizationv1.ResourceAttributes) string {
	name := what.Resource
	if what.Subresource != "" {
		name += "/" + what.Subresource
	}
	if what.Group != "" {
		name += "." + what.Group
	}
	if what.Name != "" {
		name = what.Name + " of " + name
	}
	if what.Namespace != "" {
		name += " in " + what.Namespace
	}
	return name
}

// grant gives the editor and the viewer the roles from which Kubernetes' roles edit and view are aggregated; edit
// and view themselves are empty where no controller aggregates ClusterRoles.
func grant(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	subject := func(who identity) []rbacv1.Subject {
		return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: who.user.Name}}
	}
	const edit, view = "system:aggregate-to-edit", "system:aggregate-to-view"
	for _, role := range []string{edit, view, roles.View.Name} {
		if _, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role}, Subjects: subject(editor), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, role := range []string{view, roles.View.Name} {
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: viewer.user.Name + ":" + role}, Subjects: subject(viewer), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// granted returns nil once the server knows the bindings that grant made.
func granted(ctx context.Context, client kubernetes.Interface) error {
	for _, who := range []identity{editor, viewer} {
		for _, gr := range []schema.GroupResource{{Resource: "configmaps"}, {Group: "coordination.k8s.io", Resource: "leases"}} {
			may, err := who.may(ctx, client, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Group: gr.Group, Resource: gr.Resource, Namespace: namespace}})
			if err != nil {
				return err
			}
			if !may {
				return fmt.Errorf("the %s may not read %s", who.name, gr)
			}
		}
	}
	return nil
}
