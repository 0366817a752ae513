package generic_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/concord-dev/concord/e2e/access"
	"github.com/concord-dev/concord/join/roles"
)

// TestPermissions compares everybody's permissions on the objects that the protocol lives on with
// testdata/permissions.txt. With CONCORD_UPDATE=1 it writes that file.
func TestPermissions(t *testing.T) {
	access.Check(t, shared.kube, filepath.Join("testdata", "permissions.txt"))
}

// TestViewTakesInOurs: whoever may view the whole cluster may read what kubectl concord shows.
func TestViewTakesInOurs(t *testing.T) {
	eventually(t, "Kubernetes' role view has our rules", func(ctx context.Context) error {
		view, err := shared.kube.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if covered, _ := validation.Covers(view.Rules, roles.View.Rules); !covered {
			return fmt.Errorf("it has %v", view.Rules)
		}
		return nil
	})
}

// TestWritesAreRefused sends the writes that, as the table says, a service account without rights may not do.
func TestWritesAreRefused(t *testing.T) {
	ns := shared.namespace(t)
	config := rest.AnonymousClientConfig(shared.admin)
	config.BearerToken = shared.token(t, ns, "default")
	stranger := dynamic.NewForConfigOrDie(config)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Resource: "storageversions"},
		{Group: "migration.k8s.io", Version: "v1alpha1", Resource: "storagestates"},
		{Group: "migration.k8s.io", Version: "v1alpha1", Resource: "storageversionmigrations"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	} {
		var objects dynamic.ResourceInterface = stranger.Resource(gvr)
		if gvr.Resource == "leases" {
			objects = stranger.Resource(gvr).Namespace(metav1.NamespaceSystem)
		}
		if err := objects.Delete(t.Context(), "any", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("delete of %s: %v", gvr.Resource, err)
		}
		if err := objects.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("delete of all %s: %v", gvr.Resource, err)
		}
		if _, err := objects.Patch(t.Context(), "any", "application/merge-patch+json", []byte("{}"), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("patch of %s: %v", gvr.Resource, err)
		}
	}
}
