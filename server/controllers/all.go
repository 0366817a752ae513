package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/informers"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	k8sscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	pkgcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/clustertrustbundlepublisher"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/generated/openapi"
	quotacore "k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// How many objects a controller works on at once, and how often it looks at all of them, are
// kube-controller-manager's defaults.
const (
	namespaceWorkers   = 10
	namespaceResync    = 5 * time.Minute
	garbageWorkers     = 20
	quotaWorkers       = 5
	quotaResync        = 5 * time.Minute
	certificateWorkers = 5
	tokenWorkers       = 5
	aggregationWorkers = 5
	policyWorkers      = 5
)

// controller is one of Kubernetes' controllers, by its name in kube-controller-manager.
type controller struct {
	name string
	// as is the identity that it has there.
	as string
	// create adds its loops to the term.
	create func(context.Context, *rest.Config, kubernetes.Interface) error
}

func (t *term) all() []controller {
	return []controller{
		{"namespace-controller", account("namespace-controller"), t.namespaces},
		{"garbage-collector-controller", account("generic-garbage-collector"), t.garbage},
		{"serviceaccount-controller", account("service-account-controller"), t.serviceAccounts},
		{"serviceaccount-token-controller", user.KubeControllerManager, t.tokens},
		{"root-ca-certificate-publisher-controller", account("root-ca-cert-publisher"), t.rootCA},
		{"kube-apiserver-serving-clustertrustbundle-publisher-controller", account("kube-apiserver-serving-clustertrustbundle-publisher"), t.trustBundle},
		{"clusterrole-aggregation-controller", account("clusterrole-aggregation-controller"), t.aggregation},
		{"resourcequota-controller", account("resourcequota-controller"), t.quota},
		{"certificatesigningrequest-signing-controller", account(certificateController), t.signing},
		{"certificatesigningrequest-approving-controller", account(certificateController), t.approving},
		{"certificatesigningrequest-cleaner-controller", account(certificateController), t.cleaning},
		{"validatingadmissionpolicy-status-controller", account("validatingadmissionpolicy-status-controller"), t.policyStatus},
	}
}

func (t *term) namespaces(ctx context.Context, config *rest.Config, client kubernetes.Interface) error {
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	c := namespace.NewNamespaceController(ctx, client, objects, client.Discovery().ServerPreferredNamespacedResources,
		t.shared.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
	t.run(func(ctx context.Context) { c.Run(ctx, namespaceWorkers) })
	return nil
}

func (t *term) garbage(ctx context.Context, config *rest.Config, client kubernetes.Interface) error {
	if t.NoGarbageCollector {
		return nil
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	c, err := garbagecollector.NewGarbageCollector(ctx, client, objects, t.mapper, garbagecollector.DefaultIgnoredResources(), t.objects(), t.started)
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, garbageWorkers, discoveryInterval) })
	t.run(func(ctx context.Context) { c.Sync(ctx, client.Discovery(), discoveryInterval) })
	return nil
}

func (t *term) serviceAccounts(ctx context.Context, _ *rest.Config, client kubernetes.Interface) error {
	c, err := serviceaccountcontroller.NewServiceAccountsController(klog.FromContext(ctx), t.shared.Core().V1().ServiceAccounts(),
		t.shared.Core().V1().Namespaces(), client, serviceaccountcontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

// tokens fills Secrets that ask for a service account's token. It has kube-controller-manager's
// own identity, as there.
func (t *term) tokens(ctx context.Context, _ *rest.Config, client kubernetes.Interface) error {
	if t.TokenKeyFile == "" {
		return nil
	}
	key, err := keyutil.PrivateKeyFromFile(t.TokenKeyFile)
	if err != nil {
		return fmt.Errorf("signing key: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return err
	}
	c, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx), t.shared.Core().V1().ServiceAccounts(), t.shared.Core().V1().Secrets(),
		client, serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: t.RootCA})
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, tokenWorkers) })
	return nil
}

func (t *term) rootCA(_ context.Context, _ *rest.Config, client kubernetes.Interface) error {
	c, err := rootcacertpublisher.NewPublisher(t.shared.Core().V1().ConfigMaps(), t.shared.Core().V1().Namespaces(), client, t.RootCA)
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

// trustBundle publishes the root CA where Kubernetes has bundles of trusted certificates.
func (t *term) trustBundle(_ context.Context, _ *rest.Config, client kubernetes.Interface) error {
	if !t.served[certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles")] {
		return nil
	}
	root, err := dynamiccertificates.NewStaticCAContent("root-ca", t.RootCA)
	if err != nil {
		return err
	}
	c, err := clustertrustbundlepublisher.NewGAClusterTrustBundlePublisher("kubernetes.io/kube-apiserver-serving", root, client)
	if err != nil {
		return err
	}
	t.run(c.Run)
	return nil
}

func (t *term) aggregation(_ context.Context, _ *rest.Config, client kubernetes.Interface) error {
	c := clusterroleaggregation.NewClusterRoleAggregation(t.shared.Rbac().V1().ClusterRoles(), client.RbacV1())
	t.run(func(ctx context.Context) { c.Run(ctx, aggregationWorkers) })
	return nil
}

func (t *term) quota(ctx context.Context, _ *rest.Config, client kubernetes.Interface) error {
	resources := client.Discovery().ServerPreferredNamespacedResources
	evaluators, err := quotaEvaluators(t.shared, t.served)
	if err != nil {
		return err
	}
	quotas := generic.NewConfiguration(evaluators, quotainstall.DefaultIgnoredResources())
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               client.CoreV1(),
		ResourceQuotaInformer:     t.shared.Core().V1().ResourceQuotas(),
		ResyncPeriod:              pkgcontroller.StaticResyncPeriodFunc(quotaResync),
		InformerFactory:           t.objects(),
		ReplenishmentResyncPeriod: pkgcontroller.StaticResyncPeriodFunc(informerResync),
		DiscoveryFunc:             resources,
		IgnoredResourcesFunc:      quotas.IgnoredResources,
		InformersStarted:          t.started,
		Registry:                  generic.NewRegistry(quotas.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, quotaWorkers) })
	t.run(func(ctx context.Context) { c.Sync(ctx, resources, discoveryInterval) })
	return nil
}

// quotaEvaluators returns those of Kubernetes' counters for quotas whose resources are served. Kubernetes makes that of
// replicationcontrollers always; where nobody serves them, a quota that names them would be counted again and again, with
// an error each time. Each count may overwrite that of admission with one from a cache that lags.
func quotaEvaluators(shared informers.SharedInformerFactory, served map[schema.GroupVersionResource]bool) ([]quota.Evaluator, error) {
	evaluators, err := quotacore.NewEvaluators(generic.ListerFuncForResourceFunc(shared.ForResource), shared, func(gvr schema.GroupVersionResource) bool { return served[gvr] })
	return slices.DeleteFunc(evaluators, func(e quota.Evaluator) bool {
		gr := e.GroupResource()
		return gr.Group == corev1.GroupName && !served[corev1.SchemeGroupVersion.WithResource(gr.Resource)]
	}), err
}

// certificateController is the identity of all that work on certificate requests.
const certificateController = "certificate-controller"

func (t *term) signing(ctx context.Context, _ *rest.Config, client kubernetes.Interface) error {
	if !t.signs() {
		return nil
	}
	for _, create := range []func(context.Context, kubernetes.Interface, certificatesinformers.CertificateSigningRequestInformer, string, string, time.Duration) (*signer.CSRSigningController, error){
		signer.NewKubeletServingCSRSigningController, signer.NewKubeletClientCSRSigningController,
		signer.NewKubeAPIServerClientCSRSigningController, signer.NewLegacyUnknownCSRSigningController,
	} {
		c, err := create(ctx, client, t.shared.Certificates().V1().CertificateSigningRequests(), t.CACertFile, t.CAKeyFile, certificateDuration)
		if err != nil {
			return err
		}
		t.run(func(ctx context.Context) { c.Run(ctx, certificateWorkers) })
	}
	return nil
}

func (t *term) approving(ctx context.Context, _ *rest.Config, client kubernetes.Interface) error {
	c := approver.NewCSRApprovingController(ctx, client, t.shared.Certificates().V1().CertificateSigningRequests())
	t.run(func(ctx context.Context) { c.Run(ctx, certificateWorkers) })
	return nil
}

func (t *term) cleaning(_ context.Context, _ *rest.Config, client kubernetes.Interface) error {
	c := cleaner.NewCSRCleanerController(client.CertificatesV1().CertificateSigningRequests(), t.shared.Certificates().V1().CertificateSigningRequests())
	t.run(func(ctx context.Context) { c.Run(ctx, 1) })
	return nil
}

func (t *term) policyStatus(_ context.Context, _ *rest.Config, client kubernetes.Interface) error {
	known := resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, k8sscheme.Scheme, apiextensionsscheme.Scheme)
	c, err := validatingadmissionpolicystatus.NewController(
		t.shared.Admissionregistration().V1().ValidatingAdmissionPolicies(), client.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: known.Combine(&resolver.ClientDiscoveryResolver{Discovery: client.Discovery()}),
			RestMapper:     t.mapper,
		})
	if err != nil {
		return err
	}
	t.run(func(ctx context.Context) { c.Run(ctx, policyWorkers) })
	return nil
}
