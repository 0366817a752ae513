package kube_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	kubeadmconstants "k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/certs"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/controlplane"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/kubeconfig"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/staticpod"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// deployed are the manifests of concord controllers, as they are installed.
const (
	deployFolder       = "../../deploy"
	withoutGuards      = "install/controllers.yaml"
	withGuards         = "install/controllers-and-guards.yaml"
	chartWithAllValues = "chart/testdata/all-values.yaml"
)

// manifests reads the objects of a file under deploy, in their order.
func manifests(t testing.TB, path string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := beside.Manifests(filepath.Join(deployFolder, path))
	must(t, err)
	return objects
}

// apply applies an object, server-side and with strict validation, as kubectl does.
func (s *apiserver) apply(ctx context.Context, mapper meta.RESTMapper, object *unstructured.Unstructured, dryRun ...string) (*unstructured.Unstructured, error) {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	var client dynamic.ResourceInterface = s.Dynamic().Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = s.Dynamic().Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	data, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, object.GetName(), "application/apply-patch+yaml", data,
		metav1.PatchOptions{FieldManager: "test", DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
}

func (s *apiserver) mapper() meta.RESTMapper {
	s.t.Helper()
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.Kube().Discovery()))
}

// install applies all objects of a file.
func (s *apiserver) install(path string) {
	s.t.Helper()
	mapper := s.mapper()
	for _, object := range manifests(s.t, path) {
		s.applied(mapper, object)
	}
}

// applied applies an object as soon as the server accepts it, and returns it as stored. A policy that
// was just installed refuses changes of definitions until the server has its parameter objects
// ("paramKind … not yet synced").
func (s *apiserver) applied(mapper meta.RESTMapper, object *unstructured.Unstructured) (stored *unstructured.Unstructured) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprintf("%s %s is applied", object.GetKind(), object.GetName()), func(ctx context.Context) (err error) {
		stored, err = s.apply(ctx, mapper, object)
		return err
	})
	return stored
}

// TestDeploy applies the manifests of concord controllers to Kubernetes' own kube-apiserver, first as
// a dry run, and creates a Pod of each Deployment's template as one. Package deploy tests that Helm's
// chart and kustomize's bases render them.
func TestDeploy(t *testing.T) {
	t.Parallel()
	s := newControl(t).ready(stock, "one")
	mapper := s.mapper()
	for _, path := range []string{withGuards, chartWithAllValues} {
		for _, object := range manifests(t, path) {
			dryRun := []string{metav1.DryRunAll}
			if object.GetKind() == "Namespace" {
				dryRun = nil // the objects in it need it
			}
			if _, err := s.apply(t.Context(), mapper, object, dryRun...); err != nil {
				t.Errorf("%s: %s %s: %v", path, object.GetKind(), object.GetName(), err)
			}
		}
	}
	s.install(withGuards)
	for _, object := range manifests(t, withGuards) {
		first, again := s.applied(mapper, object), s.applied(mapper, object)
		if again.GetGeneration() != first.GetGeneration() {
			t.Errorf("%s %s: applied once more it is of generation %d, was %d", object.GetKind(), object.GetName(), again.GetGeneration(), first.GetGeneration())
		}
	}
	for _, path := range []string{withGuards, chartWithAllValues} {
		s.podIsRestricted(path)
	}
}

// podIsRestricted creates, as a dry run, a Pod of the Deployment's template in a file. The Pod Security
// level of its namespace, restricted, has the server refuse Pods; for a Deployment it only warns.
func (s *apiserver) podIsRestricted(path string) {
	s.t.Helper()
	all := manifests(s.t, path)
	i := slices.IndexFunc(all, func(object *unstructured.Unstructured) bool { return object.GetKind() == "Deployment" })
	if i < 0 {
		s.t.Fatalf("%s has no Deployment", path)
	}
	var deployment appsv1.Deployment
	must(s.t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(all[i].Object, &deployment, true))
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.GenerateName = deployment.Name + "-"
	create := func() error {
		_, err := s.Kube().CoreV1().Pods(deployment.Namespace).Create(s.t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create(); err != nil {
		s.t.Errorf("%s: a Pod: %v", path, err)
	}
	pod.Spec.SecurityContext = nil
	if err := create(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
		s.t.Errorf("%s: a Pod that may run as root: %v", path, err)
	}
}

// TestDeployedDefinitions: the CustomResourceDefinitions in the manifests are those that servers
// install by themselves.
func TestDeployedDefinitions(t *testing.T) {
	deployed := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, object := range manifests(t, withoutGuards) {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &crd, true))
		deployed[crd.Name] = &crd
	}
	installed := append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
	if len(deployed) != len(installed) {
		t.Errorf("%d definitions are deployed, %d installed", len(deployed), len(installed))
	}
	for _, want := range installed {
		if got := deployed[want.Name]; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s differs from what servers install: run make manifests", want.Name)
		}
	}
}

// kubeadm makes what kubeadm init makes: certificates, kubeconfigs, and the configuration with
// kube-apiserver's flags.
func (c *control) kubeadm(port int) *kubeadmapi.InitConfiguration {
	c.t.Helper()
	cfg, err := config.DefaultedStaticInitConfiguration()
	must(c.t, err)
	cfg.CertificatesDir = c.CertDir
	cfg.LocalAPIEndpoint = kubeadmapi.APIEndpoint{AdvertiseAddress: "127.0.0.1", BindPort: int32(port)}
	must(c.t, certs.CreatePKIAssets(cfg))
	for _, name := range []string{kubeadmconstants.AdminKubeConfigFileName, kubeadmconstants.SuperAdminKubeConfigFileName, kubeadmconstants.KubeletKubeConfigFileName} {
		must(c.t, kubeconfig.CreateKubeConfigFile(name, c.Dir, cfg))
	}
	return cfg
}

// startMutualEtcd starts an etcd that requires client certificates, as kubeadm's does.
func (c *control) startMutualEtcd(cfg *kubeadmapi.InitConfiguration) (endpoint string) {
	c.t.Helper()
	file := func(name string) string { return filepath.Join(cfg.CertificatesDir, name) }
	endpoint, peer := "https://"+cluster.FreeAddress(c.t), "https://"+cluster.FreeAddress(c.t)
	start(c.t, etcd, "etcd", c.Dir, "--data-dir="+c.Path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint, "--cert-file="+file(kubeadmconstants.EtcdServerCertName), "--key-file="+file(kubeadmconstants.EtcdServerKeyName),
		"--client-cert-auth=true", "--trusted-ca-file="+file(kubeadmconstants.EtcdCACertName),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer, "--peer-cert-file="+file(kubeadmconstants.EtcdPeerCertName),
		"--peer-key-file="+file(kubeadmconstants.EtcdPeerKeyName), "--peer-client-cert-auth=true", "--peer-trusted-ca-file="+file(kubeadmconstants.EtcdCACertName))
	pair, err := tls.LoadX509KeyPair(file(kubeadmconstants.APIServerEtcdClientCertName), file(kubeadmconstants.APIServerEtcdClientKeyName))
	must(c.t, err)
	pool, err := certutil.NewPool(file(kubeadmconstants.EtcdCACertName))
	must(c.t, err)
	c.connect(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, endpoint)
	return endpoint
}

// kubeadmUser returns a client configuration from one of kubeadm's kubeconfigs.
func (c *control) kubeadmUser(name string) *rest.Config {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Path(name))
	must(c.t, err)
	config.QPS, config.Timeout = -1, 30*time.Second
	return config
}

// TestKubeadm: the server runs with the flags of kubeadm's static pod, from kubeadm's own code, with
// certificates that kubeadm has made and an etcd that requires them. Only the addresses are different,
// since several servers share the test's host.
func TestKubeadm(t *testing.T) {
	t.Parallel()
	c := newFiles(t)
	port := cluster.FreePort(t)
	cfg := c.kubeadm(port)
	endpoint := c.startMutualEtcd(cfg)
	cfg.Etcd.Local.ExtraArgs = []kubeadmapi.Arg{{Name: "advertise-client-urls", Value: endpoint}} // kube-apiserver gets this address
	pod := controlplane.GetStaticPodSpecs(&cfg.ClusterConfiguration, &cfg.LocalAPIEndpoint, nil)[kubeadmconstants.KubeAPIServer]
	// The static pod is patched with the patch of deploy/kubeadm.
	patched, err := staticpod.PatchStaticPod(&pod, filepath.Join("..", "..", "deploy", "kubeadm"), io.Discard)
	must(t, err)
	container := patched.Spec.Containers[0]
	command := container.Command
	if !slices.Equal(command[:2], []string{"concord", "kube-apiserver"}) || !strings.Contains(container.Image, "concord") || *container.SecurityContext.RunAsUser != 0 {
		t.Errorf("the container is %v", container)
	}
	flags := slices.Concat(command[2:], []string{"--bind-address=127.0.0.1", "--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s"})
	t.Log(strings.Join(flags, " "))
	stranger := start(t, ours, "stranger", c.Dir, append(flags, "--etcd-cafile="+filepath.Join(cfg.CertificatesDir, kubeadmconstants.FrontProxyCACertName))...)
	if ended, ok := stranger.Wait(time.Minute); !ok {
		t.Fatal("it runs with another CA for etcd")
	} else if said := ended.Stderr; !strings.Contains(said, "etcd's certificate is refused") || !strings.Contains(said, "--etcd-cafile") {
		t.Errorf("with another CA for etcd it said %s", said)
	}
	s := c.add("one", func(*testbed.Server) *exec.Cmd { return process.Self(ours, flags...) })
	s.Port, s.Admin = port, c.kubeadmUser(kubeadmconstants.SuperAdminKubeConfigFileName)
	s.Start()
	s.WaitReady()
	probesPass(t, s, container)
	s.agreed(time.Minute, 1)
	s.migrated(time.Minute)
	bootstrapTokensWork(t, s)
	kubeletsAreRestricted(t, kubernetes.NewForConfigOrDie(c.kubeadmUser(kubeadmconstants.KubeletKubeConfigFileName)))
	s.end()
}

// probesPass requests what the probes of the static pod request, without a user as a kubelet does.
func probesPass(t *testing.T, s *apiserver, container corev1.Container) {
	t.Helper()
	for name, probe := range map[string]*corev1.Probe{"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("the %s probe is %v", name, probe)
			continue
		}
		eventually(t, time.Minute, fmt.Sprintf("the %s probe of %s passes", name, probe.HTTPGet.Path), func(ctx context.Context) error {
			status, body, err := testbed.Get(ctx, rest.AnonymousClientConfig(s.Admin), probe.HTTPGet.Path, nil)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%d %s", status, body)
			}
			return err
		})
	}
}

// bootstrapTokensWork makes a request with a bootstrap token, as kubeadm join does for a node.
func bootstrapTokensWork(t *testing.T, s *apiserver) {
	t.Helper()
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
	}
	if _, err := s.Kube().CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joining := rest.AnonymousClientConfig(s.Admin)
	joining.BearerToken = "abcdef.0123456789abcdef"
	client, err := kubernetes.NewForConfig(joining)
	must(t, err)
	eventually(t, time.Minute, "the token is known", func(ctx context.Context) error {
		who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil && who.Status.UserInfo.Username != "system:bootstrap:abcdef" {
			err = fmt.Errorf("it is that of %s", who.Status.UserInfo.Username)
		}
		return err
	})
}

// kubeletsAreRestricted tries to create, as a kubelet, its own Node and another one.
func kubeletsAreRestricted(t *testing.T, kubelet kubernetes.Interface) {
	t.Helper()
	node := func(name string) error {
		_, err := kubelet.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := node("node"); err != nil {
		t.Errorf("a kubelet's own Node: %v", err)
	}
	if err := node("other"); !apierrors.IsForbidden(err) {
		t.Errorf("another kubelet's Node: %v", err)
	}
}
