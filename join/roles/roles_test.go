package roles_test

import (
	"os"
	"reflect"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/join/roles"
)

// TestView: the ClusterRole for readers that servers make has the same rules as the manifest for clusters
// without Concord's servers, and Kubernetes' role view aggregates both.
func TestView(t *testing.T) {
	text, err := os.ReadFile("../../deploy/controllers/base/readers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployed rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(text, &deployed); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(roles.View.Rules, deployed.Rules) {
		t.Errorf("servers allow %v, the manifest %v", roles.View.Rules, deployed.Rules)
	}
	const label = "rbac.authorization.k8s.io/aggregate-to-view"
	if roles.View.Labels[label] != "true" || deployed.Labels[label] != "true" {
		t.Errorf("labels: %v and %v", roles.View.Labels, deployed.Labels)
	}
}
