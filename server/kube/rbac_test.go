package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identity is somebody who asks.
type identity struct {
	name   string
	user   string
	groups []string
}

var askers = []identity{
	{"anonymous", user.Anonymous, []string{user.AllUnauthenticated}},
	{"authenticated", "stranger", []string{user.AllAuthenticated}},
	{"editor of a namespace", "editor", []string{user.AllAuthenticated}},
	{"viewer", "viewer", []string{user.AllAuthenticated}},
	{"concord's controllers", "system:concord-controllers", []string{user.AllAuthenticated}},
	{"kube-controller-manager's migrator", "system:serviceaccount:kube-system:storage-version-migrator-controller", []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", user.AllAuthenticated}},
	{"masters", "admin", []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
}

var protected = []authorizationv1.ResourceAttributes{
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions"},
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions", Subresource: "status"},
	{Group: "migration.k8s.io", Resource: "storagestates"},
	{Group: "migration.k8s.io", Resource: "storagestates", Subresource: "status"},
	{Group: "migration.k8s.io", Resource: "storageversionmigrations"},
	{Group: "migration.k8s.io", Resource: "storageversionmigrations", Subresource: "status"},
	{Group: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"},
	{Group: "coordination.k8s.io", Resource: "leases", Namespace: "team"},
	{Resource: "secrets", Namespace: "team"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Subresource: "status"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
}

var (
	protectedVerbs = []string{"get", "list", "create", "update", "patch", "delete"}
	protectedPaths = []string{"/concord/census/configmaps", "/metrics", "/readyz", "/version"}
)

// TestPermissions compares what everybody may do to what the protocol lives on with
// testdata/permissions.txt. With CONCORD_UPDATE=1 it writes that file.
func TestPermissions(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one")
	s.migrated(time.Minute) // the controllers' roles are there
	grant(t, s)
	var table strings.Builder
	for _, who := range askers {
		fmt.Fprintf(&table, "%s\n", who.name)
		for _, what := range protected {
			if verbs := s.allowed(who, what); len(verbs) > 0 {
				fmt.Fprintf(&table, "  %s: %s\n", describe(what), strings.Join(verbs, " "))
			}
		}
		for _, path := range protectedPaths {
			if s.may(who, authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"}}) {
				fmt.Fprintf(&table, "  %s: get\n", path)
			}
		}
	}
	golden := filepath.Join("testdata", "permissions.txt")
	if os.Getenv("CONCORD_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != table.String() {
		t.Errorf("error %v; who may do what is\n%s\nwant\n%s", err, table.String(), want)
	}
	t.Run("Requests", func(t *testing.T) { requestsAreRefused(t, s) })
}

func describe(what authorizationv1.ResourceAttributes) string {
	name := what.Resource
	if what.Subresource != "" {
		name += "/" + what.Subresource
	}
	if what.Group != "" {
		name += "." + what.Group
	}
	if what.Namespace != "" {
		name += " in " + what.Namespace
	}
	return name
}

// grant makes the editor and the viewer what they are.
func grant(t *testing.T, s *apiserver) {
	t.Helper()
	ctx := t.Context()
	subject := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	}
	if _, err := s.kube().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// kube-controller-manager, which does not run here, puts edit and view together of these.
	const edit, view = "system:aggregate-to-edit", "system:aggregate-to-view"
	for _, role := range []string{edit, view} {
		if _, err := s.kube().RbacV1().RoleBindings("team").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role}, Subjects: subject("editor"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.kube().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Subjects: subject("viewer"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: view},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server knows of a binding a moment after it was made.
	eventually(t, time.Minute, "the bindings count", func(context.Context) error {
		for _, who := range askers[2:4] {
			if !s.may(who, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Namespace: "team"}}) {
				return fmt.Errorf("%s may not read ConfigMaps", who.name)
			}
		}
		return nil
	})
}

func (s *apiserver) allowed(who identity, what authorizationv1.ResourceAttributes) (verbs []string) {
	s.t.Helper()
	for _, verb := range protectedVerbs {
		asked := what
		asked.Verb = verb
		if s.may(who, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &asked}) {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

func (s *apiserver) may(who identity, what authorizationv1.SubjectAccessReviewSpec) bool {
	s.t.Helper()
	what.User, what.Groups = who.user, who.groups
	review, err := s.kube().AuthorizationV1().SubjectAccessReviews().Create(s.t.Context(), &authorizationv1.SubjectAccessReview{Spec: what}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return review.Status.Allowed
}

// requestsAreRefused sends what the table says is refused.
func requestsAreRefused(t *testing.T, s *apiserver) {
	for token, want := range map[string]int{"": http.StatusForbidden, strangerToken: http.StatusForbidden, "wrong": http.StatusUnauthorized, adminToken: http.StatusOK} {
		for _, path := range []string{
			"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions", "/apis/migration.k8s.io/v1alpha1/storagestates",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "/concord/census/configmaps", "/metrics",
		} {
			status, body, err := fetch(t.Context(), s.as(token), path, nil)
			if err != nil || status != want {
				t.Errorf("token %q, %s: %d, want %d, error %v: %.200s", token, path, status, want, err, body)
			}
		}
	}
}
