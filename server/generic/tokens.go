package generic

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokenGetter reads the objects to which service account tokens are bound. The getter of Kubernetes' generic control
// plane uses informers only, so that a server refuses a token until it has heard of an account that another server has
// just created. This one also asks live, as kube-apiserver does; only tokens with a correct signature get here.
type tokenGetter struct {
	serviceaccount.ServiceAccountTokenGetter
	client *kubernetes.Clientset
}

// freshTokens has options take tokens of accounts and Secrets that informers lack. The returned
// function is called with the loopback's configuration, before the server serves.
func freshTokens(options *Options) (reach func(*rest.Config) error) {
	accounts := options.authentication().ServiceAccounts
	getter := &tokenGetter{}
	byInformers := accounts.OptionalTokenGetter
	accounts.OptionalTokenGetter = func(factory informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		getter.ServiceAccountTokenGetter = byInformers(factory)
		return getter
	}
	return func(loopback *rest.Config) (err error) {
		getter.client, err = kubernetes.NewForConfig(loopback)
		return err
	}
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter.
func (g *tokenGetter) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	account, err := g.ServiceAccountTokenGetter.GetServiceAccount(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return g.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return account, err
}

// GetSecret implements serviceaccount.ServiceAccountTokenGetter.
func (g *tokenGetter) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	secret, err := g.ServiceAccountTokenGetter.GetSecret(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return g.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return secret, err
}
