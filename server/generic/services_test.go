package generic_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	admissionapi "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// aside is a server beside the control plane, which a Service names.
func aside(t *testing.T, ns string, handler http.HandlerFunc) (ca []byte, port int32) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	u := must[*url.URL](t)(url.Parse(server.URL))
	number := must[int](t)(strconv.Atoi(u.Port()))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "aside"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(number)}}}}
	must[*corev1.Service](t)(shared.kube.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), int32(number)
}

func TestServices(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	for name, spec := range map[string]corev1.ServiceSpec{
		"address": {Ports: []corev1.ServicePort{{Port: 80}}},
		"port":    {Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	} {
		_, err := shared.kube.CoreV1().Services(ns).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "no service network") {
			t.Errorf("a Service that needs an %s: %v", name, err)
		}
	}
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}}
	must[*corev1.Service](t)(shared.kube.CoreV1().Services(ns).Create(ctx, headless, metav1.CreateOptions{}))
	if err := shared.kube.CoreV1().Services(ns).Delete(ctx, "headless", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// An API of another server is served through its Service, with the user's name and groups
// and the front proxy's certificate.
func TestAggregation(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	ca, port := aside(t, ns, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/aside.concord.dev/v1/me" {
			_ = json.NewEncoder(w).Encode(map[string]string{"user": r.Header.Get("X-Remote-User"), "path": r.URL.Path})
			return
		}
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "aside.concord.dev/v1"})
	})
	_ = ca // the certificate of httptest is not for the Service's name
	services := aggregator.NewForConfigOrDie(shared.admin).ApiregistrationV1().APIServices()
	api := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.aside.concord.dev"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "aside.concord.dev", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
		Service: &apiregistrationv1.ServiceReference{Namespace: ns, Name: "aside", Port: &port},
	}}
	must[*apiregistrationv1.APIService](t)(services.Create(ctx, api, metav1.CreateOptions{}))
	t.Cleanup(func() { _ = services.Delete(context.Background(), api.Name, metav1.DeleteOptions{}) })
	eventually(t, "the aggregated API", func(ctx context.Context) error {
		raw, err := shared.kube.Discovery().RESTClient().Get().AbsPath("/apis/aside.concord.dev/v1/me").DoRaw(ctx)
		if err != nil {
			return err
		}
		if !strings.Contains(string(raw), `"user":"admin"`) {
			return fmt.Errorf("it says %s", raw)
		}
		return nil
	})
	eventually(t, "the availability of the API", func(ctx context.Context) error {
		got, err := services.Get(ctx, api.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", got.Status.Conditions)
	})
}

func TestWebhook(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionapi.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionapi.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "the webhook refuses " + review.Request.Name}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	none := admissionv1.SideEffectClassNone
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name:              "refuse.concord.dev",
		ClientConfig:      admissionv1.WebhookClientConfig{URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
		SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}}}
	hooks := shared.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must[*admissionv1.ValidatingWebhookConfiguration](t)(hooks.Create(ctx, hook, metav1.CreateOptions{}))
	t.Cleanup(func() { _ = hooks.Delete(context.Background(), ns, metav1.DeleteOptions{}) })
	eventually(t, "the webhook", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("a", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it is not asked")
		}
		if !strings.Contains(err.Error(), "the webhook refuses a") {
			return err
		}
		return nil
	})
}
