package planning

import (
	"testing"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// builtConfig is the configuration that Kubernetes builds from its flags before any storage is there.
func builtConfig(t *testing.T, change func(*controlplaneoptions.Options)) (*genericapiserver.Config, *serverstorage.DefaultStorageFactory) {
	t.Helper()
	opts := controlplaneoptions.NewOptions()
	opts.SecureServing.ServerCert.CertDirectory = t.TempDir()
	opts.Etcd.StorageConfig.Transport.ServerList = []string{"http://127.0.0.1:1"} // never reached
	opts.Authentication.ServiceAccounts.Issuers = []string{"https://example.com"}
	if change != nil {
		change(opts)
	}
	completed, err := opts.Complete(t.Context(), nil, nil)
	must(t, err)
	config, _, factory, err := controlplaneapiserver.BuildGenericConfig(completed,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		controlplane.DefaultAPIResourceConfigSource(), generatedopenapi.GetOpenAPIDefinitions, nil)
	must(t, err)
	return config, factory
}

// TestBuiltConfig: a plan applied to a config that Kubernetes has built reaches the storage that is built from it later, and the APIs.
func TestBuiltConfig(t *testing.T) {
	config, factory := builtConfig(t, func(o *controlplaneoptions.Options) {
		must(t, o.APIEnablement.RuntimeConfig.Set("certificates.k8s.io/v1beta1=true,internal.apiserver.k8s.io/v1alpha1=true"))
	})
	bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	if got := encodingBy(t, config, bundles, "ClusterTrustBundle"); got != "certificates.k8s.io/v1beta1" {
		t.Fatalf("Kubernetes stores them in %s", got)
	}
	plan := mustPlan(t, Options{Effective: effective(t, "1.37/1.37")})
	must(t, ApplyStorage(plan, factory))
	if got := encodingBy(t, config, bundles, "ClusterTrustBundle"); got != "certificates.k8s.io/v1" {
		t.Errorf("with the plan they are stored in %s", got)
	}
	beta, versions := bundles.WithVersion("v1beta1"), schema.GroupVersionResource{Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Resource: "storageversions"}
	source := factory.APIResourceConfigSource // read when APIs are installed
	if !source.ResourceEnabled(beta) || !source.ResourceEnabled(versions) {
		t.Fatal("runtime-config is not in the config")
	}
	must(t, ApplyAPIs(plan, config))
	if source.ResourceEnabled(beta) || source.ResourceEnabled(versions) || !source.ResourceEnabled(bundles.WithVersion("v1")) {
		t.Error("the plan is not in the config that Kubernetes installs its APIs by")
	}
}

// encodingBy writes an empty object as the storage does that is built from the config.
func encodingBy(t *testing.T, config *genericapiserver.Config, gr schema.GroupResource, kind string) string {
	t.Helper()
	example, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: gr.Group, Version: runtime.APIVersionInternal, Kind: kind})
	must(t, err)
	options, err := config.RESTOptionsGetter.GetRESTOptions(gr, example)
	must(t, err)
	raw, err := runtime.Encode(options.StorageConfig.Codec, example)
	must(t, err)
	_, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	must(t, err)
	return gvk.GroupVersion().String()
}
