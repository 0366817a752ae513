package generic_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/server/controllers"
	"github.com/concord-dev/concord/server/generic"
)

// TestAnonymous: without a token, everybody may read health and version and nothing else; a wrong
// token is refused.
func TestAnonymous(t *testing.T) {
	client := must[*http.Client](t)(rest.HTTPClientFor(rest.AnonymousClientConfig(shared.admin)))
	for path, want := range map[string]int{
		"/healthz": 200, "/livez": 200, "/readyz": 200, "/version": 200,
		"/api/v1/namespaces": 403, "/metrics": 403, "/apis": 403,
	} {
		look := func(context.Context) error {
			response := must[*http.Response](t)(client.Get(shared.admin.Host + path))
			_ = response.Body.Close()
			if response.StatusCode != want {
				return fmt.Errorf("%s: status %d, want %d", path, response.StatusCode, want)
			}
			return nil
		}
		if want == http.StatusOK { // etcd may be late for a moment
			eventually(t, "health", look)
		} else if err := look(t.Context()); err != nil {
			t.Error(err)
		}
	}
	request := must[*http.Request](t)(http.NewRequest(http.MethodGet, shared.admin.Host+"/version", nil))
	request.Header.Set("Authorization", "Bearer wrong")
	response := must[*http.Response](t)(client.Do(request))
	_ = response.Body.Close()
	if response.StatusCode != 401 {
		t.Errorf("a wrong token: status %d, want 401", response.StatusCode)
	}
	forger := rest.AnonymousClientConfig(shared.admin)
	forger.CertData, forger.KeyData = cluster.NewAuthority(t, "concord-ca").Issue("admin", "system:masters")
	if _, err := kubernetes.NewForConfigOrDie(forger).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("a certificate of another CA of the same name: %v", err)
	}
}

// TestHookShown: the post-start hook of KEP-2339 is among the health checks and their metrics, and that which starts to
// renew certificates.
func TestHookShown(t *testing.T) {
	const hook = "poststarthook/built-in-resources-storage-version-updater"
	for path, want := range map[string]string{
		"/readyz?verbose=true": hook + " ok", "/metrics/slis": `kubernetes_healthcheck{name="` + hook + `",type="readyz"} 1`,
		"/readyz?verbose": "[+]poststarthook/concord-certificates ok",
	} {
		client := must[*http.Client](t)(rest.HTTPClientFor(shared.admin))
		response := must[*http.Response](t)(client.Get(shared.admin.Host + path))
		body := must[[]byte](t)(io.ReadAll(response.Body))
		_ = response.Body.Close()
		if !strings.Contains(string(body), want) {
			t.Errorf("%s has no %s: %s", path, want, body)
		}
	}
}

// TestAllFeatures runs tests with all features on, in a process of their own; clients then prefer
// CBOR.
func TestAllFeatures(t *testing.T) {
	tests := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^(TestCustomResources|TestWatchCacheOutlivesStorageVersion)$", "-test.v")
	tests.Env = append(os.Environ(), allFeatures+"=yes")
	out, err := tests.CombinedOutput()
	if passed := strings.Count(string(out), "--- PASS"); err != nil || passed != 2 {
		t.Errorf("%d tests passed: %v\n%s", passed, err, out)
	}
}

func TestObjects(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	maps, secrets := shared.kube.CoreV1().ConfigMaps(ns), shared.kube.CoreV1().Secrets(ns)
	made := must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("a", map[string]string{"k": "1"}), metav1.CreateOptions{}))
	events := must[watch.Interface](t)(maps.Watch(ctx, metav1.ListOptions{ResourceVersion: made.ResourceVersion, FieldSelector: "metadata.name=a"}))
	defer events.Stop()
	must[*corev1.ConfigMap](t)(maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"k":"2"}}`), metav1.PatchOptions{}))
	must[*corev1.ConfigMap](t)(maps.Apply(ctx, applycorev1.ConfigMap("a", ns).WithData(map[string]string{"applied": "yes"}), metav1.ApplyOptions{FieldManager: "test"}))
	mustDo(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}))
	for _, want := range []string{"MODIFIED map[k:2]", "MODIFIED map[applied:yes k:2]", "DELETED map[applied:yes k:2]"} {
		select {
		case e := <-events.ResultChan():
			if got := fmt.Sprint(e.Type, " ", e.Object.(*corev1.ConfigMap).Data); got != want {
				t.Errorf("event %s, want %s", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("no event, want %s", want)
		}
	}
	must[*corev1.Secret](t)(secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{}))
	if got := must[*corev1.Secret](t)(secrets.Get(ctx, "s", metav1.GetOptions{})); string(got.Data["k"]) != "v" || got.Type != corev1.SecretTypeOpaque {
		t.Errorf("secret %v of type %s", got.Data, got.Type)
	}
}

func TestCustomResources(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	crds := apiextensions.NewForConfigOrDie(shared.admin).ApiextensionsV1().CustomResourceDefinitions()
	keep := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.test.concord.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "test.concord.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &keep,
					XValidations: apiextensionsv1.ValidationRules{{Rule: "!has(self.size) || self.size < 10", Message: "too large"}},
					Properties:   map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer"}},
				}},
			}},
		},
	}
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(ctx, crd, metav1.CreateOptions{}))
	widgets := dynamic.NewForConfigOrDie(shared.admin).Resource(schema.GroupVersionResource{Group: "test.concord.dev", Version: "v1", Resource: "widgets"}).Namespace(ns)
	widget := func(size int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "test.concord.dev/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "size": size}}
	}
	eventually(t, "a custom resource", func(ctx context.Context) error {
		_, err := widgets.Create(ctx, widget(1), metav1.CreateOptions{})
		return err
	})
	big := widget(11)
	big.SetName("big")
	if _, err := widgets.Create(ctx, big, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a widget that breaks a rule: %v", err)
	}
	mustDo(t, crds.Delete(ctx, crd.Name, metav1.DeleteOptions{}))
	eventually(t, "the deletion of the CRD", func(ctx context.Context) error {
		_, err := crds.Get(ctx, crd.Name, metav1.GetOptions{})
		return gone(err)
	})
}

// TestTwoServers: two servers of one cluster share etcd, CA and token key, and one of them runs the
// controllers.
func TestTwoServers(t *testing.T) {
	dir := t.TempDir()
	pki, data := filepath.Join(dir, "pki"), filepath.Join(dir, "1")
	first := startFor(t, func(o *generic.Options) { o.DataDir, o.CertDir = data, pki })
	second := startFor(t, func(o *generic.Options) {
		o.DataDir, o.CertDir = filepath.Join(dir, "2"), pki
		o.ControlPlane.Etcd.StorageConfig.Transport.ServerList = []string{"unix://" + filepath.Join(data, "etcd.sock")}
	})
	ns := second.namespace(t)
	must[*corev1.ConfigMap](t)(second.kube.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("a", nil), metav1.CreateOptions{}))
	must[*corev1.ConfigMap](t)(first.kube.CoreV1().ConfigMaps(ns).Get(t.Context(), "a", metav1.GetOptions{}))
	first.whoAmI(t, second.token(t, ns, "default"))
	var ids map[string]bool
	eventually(t, "each has a Lease of the protocol and one of upstream's code, also on one host", func(ctx context.Context) error {
		leases, err := first.kube.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ids = map[string]bool{}
		for _, lease := range leases.Items {
			if strings.HasPrefix(lease.Name, "apiserver-") {
				ids[lease.Name] = true
			}
		}
		if len(ids) != 4 {
			return fmt.Errorf("the IDs are %v", ids)
		}
		return nil
	})
	if holder := second.leader(t); !ids[holder] {
		t.Errorf("%s leads, none of %v", holder, ids)
	}
}

// leader returns the identity of the server that runs the controllers. Between two terms there is none.
func (s *running) leader(t *testing.T) (holder string) {
	t.Helper()
	eventually(t, "a leader", func(ctx context.Context) error {
		lease, err := s.kube.CoordinationV1().Leases("kube-system").Get(ctx, controllers.LockName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder = ptr.Deref(lease.Spec.HolderIdentity, ""); holder == "" {
			return errors.New("there is none")
		}
		return nil
	})
	return holder
}

func TestPortTaken(t *testing.T) {
	o := generic.NewOptions()
	o.DataDir = filepath.Join(t.TempDir(), "data")
	_, port, _ := strings.Cut(shared.Address(), ":")
	if _, err := fmt.Sscan(port, &o.ControlPlane.SecureServing.BindPort); err != nil {
		t.Fatal(err)
	}
	mustDo(t, o.Complete())
	err := generic.Run(t.Context(), o, nil)
	if err == nil || !strings.Contains(err.Error(), "choose another --secure-port") {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := os.Stat(o.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made before the port was taken: %v", err)
	}
}
