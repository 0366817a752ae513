package stock

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestMirroredVersions: migrations in v1alpha1 (Kubernetes 1.34) have conditions of another form
// and are left alone.
func TestMirroredVersions(t *testing.T) {
	for version, want := range map[string]error{"": errNotServed, "v1alpha1": errAlpha, "v1beta1": nil, "v1": nil} {
		kube := fake.NewClientset()
		if version != "" {
			kube.Resources = []*metav1.APIResourceList{{GroupVersion: "storagemigration.k8s.io/" + version}}
		}
		m := &mirroring{controllers: &controllers{kube: kube, config: Config{Rest: &rest.Config{Host: "https://cluster.example.com"}}}}
		if err := m.connect(); !errors.Is(err, want) || want == nil && m.served.Version != version {
			t.Errorf("%q: %v, %v", version, m.served, err)
		}
	}
}
