package stock

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestNotInstalled: controllers that may not install definitions say what to do.
func TestNotInstalled(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	c := &controllers{objects: fake.NewClientBuilder().WithScheme(scheme).Build()}
	err := c.installed(t.Context())
	if err == nil || !strings.Contains(err.Error(), `migration.k8s.io" not found: apply the manifests`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("without definitions: %v", err)
	}
}
