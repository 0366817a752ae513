package join

import (
	"errors"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/concord-dev/concord/controller/trigger"
)

// TestNotStored: a custom resource whose definition this server has not seen yet is no resource
// that is stored elsewhere, of which a migration's own result would be believed.
func TestNotStored(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	j := &Join{crds: &definitions{stores: true}, clients: &clients{objects: fake.NewClientBuilder().WithScheme(scheme).WithObjects(crd).Build()}}
	for resource, want := range map[string]bool{"widgets": false, "gadgets": true} {
		err := j.notStored(t.Context(), schema.GroupResource{Group: "example.com", Resource: resource})
		if err == nil || errors.Is(err, trigger.ErrNotStored) != want {
			t.Errorf("%s: error %v; stored elsewhere should be %t", resource, err, want)
		}
	}
}
