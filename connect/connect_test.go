package connect

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

// TestPreferCBOR: a client writes all kinds of the protocol, and asks for answers in protobuf, also where client-go's
// feature gates have clients prefer CBOR.
func TestPreferCBOR(t *testing.T) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accept := r.Header.Get("Accept"); accept != "application/vnd.kubernetes.protobuf,application/json" {
			t.Errorf("%s %s accepts %q", r.Method, r.URL.Path, accept)
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = io.Copy(w, r.Body)
	}))
	defer api.Close()
	objects, err := NewClient(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&migrationv1alpha1.StorageState{}, &migrationv1alpha1.StorageVersionMigration{}, &versionv1alpha1.ClusterVersion{},
		&apiextensionsv1.CustomResourceDefinition{}, &coordinationv1.Lease{},
	} {
		object.SetName("a")
		object.SetNamespace("kube-system")
		if err := objects.Create(t.Context(), object); err != nil || object.GetName() != "a" {
			t.Errorf("%T %q: %v", object, object.GetName(), err)
		}
	}
}
