package generic_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionapi "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
