package generic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionapi "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"
)

func (s *running) token(t *testing.T, ns, account string) string {
	t.Helper()
	request := must[*authenticationv1.TokenRequest](t)(s.kube.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
	return request.Status.Token
}

func (s *running) with(token string) kubernetes.Interface {
	config := rest.AnonymousClientConfig(s.admin)
	config.BearerToken = token
	return kubernetes.NewForConfigOrDie(config)
}

func (s *running) whoAmI(t *testing.T, token string) string {
	t.Helper()
	review := must[*authenticationv1.SelfSubjectReview](t)(s.with(token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
	return review.Status.UserInfo.Username
}

func TestTokens(t *testing.T) {
	ns := shared.namespace(t)
	if got, want := shared.whoAmI(t, shared.token(t, ns, "default")), "system:serviceaccount:"+ns+":default"; got != want {
		t.Errorf("a requested token is of %s, want %s", got, want)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	must[*corev1.Secret](t)(shared.kube.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}))
	eventually(t, "the token in a Secret", func(ctx context.Context) error {
		var err error
		if secret, err = shared.kube.CoreV1().Secrets(ns).Get(ctx, "token", metav1.GetOptions{}); err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	if got, want := shared.whoAmI(t, string(secret.Data[corev1.ServiceAccountTokenKey])), "system:serviceaccount:"+ns+":default"; got != want {
		t.Errorf("the token in a Secret is of %s, want %s", got, want)
	}
}

func TestCertificates(t *testing.T) {
	request, key := requestCertificate(t, "jane", pkix.Name{CommonName: "jane"}, certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth)
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	must[*certificatesv1.CertificateSigningRequest](t)(shared.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), "jane", request, metav1.UpdateOptions{}))
	if got := signedFor(t, "jane", key); got.Username != "jane" {
		t.Errorf("the certificate is of %s", got.Username)
	}
}

// TestCertificateApproval: a request for a kubelet's client certificate, by a user who may have one,
// is approved by the controllers.
func TestCertificateApproval(t *testing.T) {
	const node = "system:node:n"
	_, key := requestCertificate(t, "node", pkix.Name{CommonName: node, Organization: []string{"system:nodes"}},
		certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	if got := signedFor(t, "node", key); got.Username != node || !slices.Contains(got.Groups, "system:nodes") {
		t.Errorf("the certificate is of %s in %v", got.Username, got.Groups)
	}
}

// requestCertificate makes a key and, as the administrator, a CertificateSigningRequest for it.
func requestCertificate(t *testing.T, name string, subject pkix.Name, signer string, usages ...certificatesv1.KeyUsage) (*certificatesv1.CertificateSigningRequest, *ecdsa.PrivateKey) {
	t.Helper()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key))
	return must[*certificatesv1.CertificateSigningRequest](t)(shared.kube.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages,
		},
	}, metav1.CreateOptions{})), key
}

// signedFor waits until a request is signed, and returns the user that its certificate stands for.
func signedFor(t *testing.T, name string, key *ecdsa.PrivateKey) authenticationv1.UserInfo {
	t.Helper()
	config := rest.AnonymousClientConfig(shared.admin)
	eventually(t, "the certificate", func(ctx context.Context) error {
		request, err := shared.kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if config.CertData = request.Status.Certificate; len(config.CertData) == 0 {
			return fmt.Errorf("it is not signed: %+v", request.Status)
		}
		return nil
	})
	config.KeyData = must[[]byte](t)(keyutil.MarshalPrivateKeyToPEM(key))
	review := must[*authenticationv1.SelfSubjectReview](t)(kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
	return review.Status.UserInfo
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

// TestWebhook: a mutating webhook changes objects, and a validating one is asked about what it made of them.
func TestWebhook(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionapi.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/change" {
			review.Response = &admissionapi.AdmissionResponse{
				UID: review.Request.UID, Allowed: true,
				PatchType: ptr.To(admissionapi.PatchTypeJSONPatch), Patch: []byte(`[{"op":"add","path":"/data","value":{"changed":"yes"}}]`),
			}
		} else {
			review.Response = &admissionapi.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "the webhook refuses " + string(review.Request.Object.Raw)}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	client := func(path string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{URL: ptr.To(server.URL + path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	}
	none, here := admissionv1.SideEffectClassNone, &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	rules := []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	refusing := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "refuse.concord.dev", ClientConfig: client(""), NamespaceSelector: here, Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}}}
	changing := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.MutatingWebhook{{
		Name: "change.concord.dev", ClientConfig: client("/change"), NamespaceSelector: here, Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
	}}}
	hooks := shared.kube.AdmissionregistrationV1()
	must[*admissionv1.MutatingWebhookConfiguration](t)(hooks.MutatingWebhookConfigurations().Create(ctx, changing, metav1.CreateOptions{}))
	t.Cleanup(func() {
		_ = hooks.MutatingWebhookConfigurations().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	must[*admissionv1.ValidatingWebhookConfiguration](t)(hooks.ValidatingWebhookConfigurations().Create(ctx, refusing, metav1.CreateOptions{}))
	t.Cleanup(func() {
		_ = hooks.ValidatingWebhookConfigurations().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	eventually(t, "the webhooks", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("a", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("that which refuses is not asked")
		}
		if !strings.Contains(err.Error(), "the webhook refuses ") || !strings.Contains(err.Error(), `"data":{"changed":"yes"}`) {
			return err
		}
		return nil
	})
}
