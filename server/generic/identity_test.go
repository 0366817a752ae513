package generic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
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

func TestRBAC(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	account := shared.with(shared.token(t, ns, "default"))
	if _, err := account.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("a service account without rights: %v", err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: ns}}}
	must[*rbacv1.RoleBinding](t)(shared.kube.RbacV1().RoleBindings(ns).Create(ctx, binding, metav1.CreateOptions{}))
	// view is an aggregated role: it has rights only if the controller runs.
	eventually(t, "the rights of view", func(ctx context.Context) error {
		_, err := account.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := account.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("view reads secrets: %v", err)
	}
}

func TestCertificates(t *testing.T) {
	ctx := t.Context()
	key := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key))
	requests := shared.kube.CertificatesV1().CertificateSigningRequests()
	request := must[*certificatesv1.CertificateSigningRequest](t)(requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{}))
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	must[*certificatesv1.CertificateSigningRequest](t)(requests.UpdateApproval(ctx, "jane", request, metav1.UpdateOptions{}))
	eventually(t, "the certificate", func(ctx context.Context) error {
		var err error
		if request, err = requests.Get(ctx, "jane", metav1.GetOptions{}); err == nil && len(request.Status.Certificate) == 0 {
			err = errors.New("it is not signed")
		}
		return err
	})
	config := rest.AnonymousClientConfig(shared.admin)
	config.CertData = request.Status.Certificate
	config.KeyData = must[[]byte](t)(keyutil.MarshalPrivateKeyToPEM(key))
	review := must[*authenticationv1.SelfSubjectReview](t)(kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))
	if got := review.Status.UserInfo.Username; got != "jane" {
		t.Errorf("the certificate is of %s", got)
	}
}
