package connect

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

// TestPreferCBOR: even if client-go's feature gates make clients prefer CBOR, a client can write all kinds that the protocol uses,
// and asks for answers in protobuf.
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

// TestMigrationsOfVersions: answers in protobuf are asked for only in the version of migrations whose Go types are used, v1. In
// v1alpha1, which kube-apiservers of 1.34 serve, the fields have other protobuf numbers.
func TestMigrationsOfVersions(t *testing.T) {
	for version, want := range map[string]string{
		"v1":       "application/vnd.kubernetes.protobuf,application/json",
		"v1beta1":  "application/json",
		"v1alpha1": "application/json",
	} {
		var accepts string
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			accepts = r.Header.Get("Accept")
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = io.WriteString(w, `{"apiVersion":"storagemigration.k8s.io/`+version+`","kind":"StorageVersionMigration","metadata":{"name":"a"}}`)
		}))
		defer api.Close()
		objects, err := NewClientWith(&rest.Config{Host: api.URL}, schema.GroupVersion{Group: storagemigrationv1.GroupName, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		if err := objects.Get(t.Context(), client.ObjectKey{Name: "a"}, &storagemigrationv1.StorageVersionMigration{}); err != nil || accepts != want {
			t.Errorf("%s: accepts %q, want %q; %v", version, accepts, want, err)
		}
	}
}

// TestWithTimeout: the value of --request-timeout takes precedence over the default timeout of commands.
func TestWithTimeout(t *testing.T) {
	for said, want := range map[time.Duration]time.Duration{0: answerTimeout, time.Second: time.Second, time.Minute: time.Minute} {
		config := &rest.Config{Timeout: said}
		if got := WithTimeout(config).Timeout; got != want || config.Timeout != said {
			t.Errorf("of %v it is %v, not %v", said, got, want)
		}
	}
}

// TestRefusals: of a write that the server refuses for as long as it is made again, with a second in between, the error
// has the server's message.
func TestRefusals(t *testing.T) {
	const refusal = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,"message":"etcd is out of space","details":{"retryAfterSeconds":1}}`
	asked := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "0") // a second, that of servers, would be waited for
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(refusal))
	}))
	defer api.Close()
	objects, err := NewClient(WithTimeout(&rest.Config{Host: api.URL}))
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{}
	object.Namespace, object.Name = "default", "a"
	err = objects.Create(t.Context(), object)
	if err == nil || !strings.Contains(err.Error(), "etcd is out of space") || time.Duration(asked)*time.Second >= answerTimeout {
		t.Errorf("after %d requests: %v", asked, err)
	}
}
