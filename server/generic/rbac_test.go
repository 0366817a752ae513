package generic_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
