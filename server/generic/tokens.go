package generic

import (
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// freshTokens has options look for the objects to which service account tokens are bound as kube-apiserver does: live if informers
// lack them. The getter of Kubernetes' generic control plane uses informers only, so that a server refuses a token until it has heard
// of an account that another server has just created. Only tokens with a correct signature get here. The returned function is called
// with the loopback's configuration, before the server serves.
func freshTokens(options *Options) (reach func(*rest.Config) error) {
	client := &struct{ kubernetes.Interface }{}
	noPods := corelisters.NewPodLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil))
	options.authentication().ServiceAccounts.OptionalTokenGetter = func(factory informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
		core, webhooks := factory.Core().V1(), factory.Admissionregistration().V1()
		return serviceaccountcontroller.NewGetterFromClient(client, core.Secrets().Lister(), core.ServiceAccounts().Lister(), noPods, nil,
			webhooks.ValidatingWebhookConfigurations().Lister(), webhooks.MutatingWebhookConfigurations().Lister())
	}
	return func(loopback *rest.Config) (err error) {
		client.Interface, err = kubernetes.NewForConfig(loopback)
		return err
	}
}
