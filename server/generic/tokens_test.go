package generic_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/concord-dev/concord/server/generic"
)

// TestFreshTokens: the token of an account that no informer has heard of yet, as another server
// made it, is of somebody.
func TestFreshTokens(t *testing.T) {
	options := generic.NewOptions()
	reach := generic.FreshTokens(options)
	getter := options.ControlPlane.Authentication.ServiceAccounts.OptionalTokenGetter(informers.NewSharedInformerFactory(shared.kube, 0)) // none runs
	mustDo(t, reach(shared.admin))
	ns := shared.namespace(t)
	if account, err := getter.GetServiceAccount(t.Context(), ns, "default"); err != nil || account.UID == "" {
		t.Errorf("got %+v, %v", account, err)
	}
	must[*corev1.Secret](t)(shared.kube.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}}, metav1.CreateOptions{}))
	if secret, err := getter.GetSecret(t.Context(), ns, "fresh"); err != nil || secret.UID == "" {
		t.Errorf("got %+v, %v", secret, err)
	}
	if _, err := getter.GetServiceAccount(t.Context(), ns, "none"); !apierrors.IsNotFound(err) {
		t.Errorf("of an account that does not exist: %v", err)
	}
}
