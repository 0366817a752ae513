package wardle

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

const (
	adminToken, wardleToken = "admin-token", "wardle-token"
	readyTimeout            = 2 * time.Minute
)

// host is the cluster that the aggregated servers belong to: one kube-apiserver.
type host struct {
	*cluster.Process
	t       *testing.T
	cluster *cluster.Cluster
	dir     string
	config  *rest.Config
}

// startHost runs a kube-apiserver, whose command and first arguments are given, and lets
// wardle do in it what rbac.yaml says.
func startHost(t *testing.T, command ...string) *host {
	t.Helper()
	port := cluster.FreePort(t)
	h := &host{t: t, cluster: cluster.New(t), dir: t.TempDir(), config: access(port, adminToken)}
	args := slices.Concat(command[1:], h.files())
	args = append(args,
		"--etcd-servers="+h.cluster.Endpoint, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--cert-dir="+filepath.Join(h.dir, "certs"),
		"--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		"--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--endpoint-reconciler-type=none",
	)
	h.Process = cluster.NewProcess(t, "host", h.dir, func() *exec.Cmd { return exec.Command(command[0], args...) })
	h.Start()
	waitReady(t, h.Process, h.config)
	h.permit("../rbac.yaml")
	return h
}

// access is the client configuration for a server on this port; its certificate is not verified.
func access(port int, token string) *rest.Config {
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
}

// files writes tokens, keys and the front proxy's certificates, and returns the flags.
func (h *host) files() []string {
	file := func(name string, content []byte) string {
		path := filepath.Join(h.dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			h.t.Fatal(err)
		}
		return path
	}
	tokens := file("tokens.csv", []byte(adminToken+",admin,1,system:masters\n"+wardleToken+",wardle,2\n"))
	clientKey, signing := newKey(h.t)
	clientCA, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "client-ca"}, clientKey)
	if err != nil {
		h.t.Fatal(err)
	}
	accounts := file("accounts.key", signing)
	ca, cert, key := frontProxy(h.t)
	return []string{
		"--token-auth-file=" + tokens, "--client-ca-file=" + file("client-ca.crt", encode(h.t, clientCA)), "--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--requestheader-client-ca-file=" + file("proxy-ca.crt", ca),
		"--proxy-client-cert-file=" + file("proxy.crt", cert), "--proxy-client-key-file=" + file("proxy.key", key),
	}
}

func newKey(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem
}

// frontProxy makes the certificate by which aggregated servers know their host, and its CA.
func frontProxy(t *testing.T) (ca, cert, key []byte) {
	t.Helper()
	caKey, _ := newKey(t)
	authority, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "front-proxy-ca"}, caKey)
	if err != nil {
		t.Fatal(err)
	}
	own, key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "front-proxy-client"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, own.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return encode(t, authority), encode(t, issued), key
}

func encode(t *testing.T, cert *x509.Certificate) []byte {
	t.Helper()
	pem, err := certutil.EncodeCertificates(cert)
	if err != nil {
		t.Fatal(err)
	}
	return pem
}

// kubeconfig writes wardle's access to the host to a file.
func (h *host) kubeconfig() string {
	h.t.Helper()
	path := filepath.Join(h.dir, "wardle.kubeconfig")
	if err := testbed.WriteKubeconfig(path, testbed.WithToken(h.config.Host, wardleToken)); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *host) kube() kubernetes.Interface { return kubernetes.NewForConfigOrDie(h.config) }

// permit creates the roles and bindings of a manifest.
func (h *host) permit(manifest string) {
	h.t.Helper()
	file, err := os.Open(manifest)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	client := dynamic.NewForConfigOrDie(h.config)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			h.t.Fatal(err)
		}
		gvr := object.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(object.GetKind()) + "s")
		cluster.Eventually(h.t, readyTimeout, "wardle gets its "+object.GetKind(), func(ctx context.Context) error {
			_, err := client.Resource(gvr).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
			return err
		})
	}
}

// route has the host send requests for flunders to a server on this port.
func (h *host) route(port int) {
	h.t.Helper()
	const namespace, name = "wardle", "api"
	ctx := h.t.Context()
	if _, err := h.kube().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}}}
	if _, err := h.kube().CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		api := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + flunders.Group}}
		api.Spec = apiregistrationv1.APIServiceSpec{
			Group: flunders.Group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: name, Port: ptr.To(int32(port))},
		}
		if _, err := apiregistrationclient.NewForConfigOrDie(h.config).APIServices().Create(ctx, api, metav1.CreateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
	listed := dynamic.NewForConfigOrDie(h.config).Resource(schema.GroupVersionResource{Group: flunders.Group, Version: "v1beta1", Resource: flunders.Resource})
	cluster.Eventually(h.t, readyTimeout, "the host serves flunders", func(ctx context.Context) error {
		_, err := listed.List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// waitReady waits until a server that runs is ready.
func waitReady(t *testing.T, p *cluster.Process, config *rest.Config) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, readyTimeout, p.Name+" becomes ready", func(ctx context.Context) error {
		if p.Ended() {
			t.Fatalf("%s ended", p.Name)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz?verbose", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("%d: %s, %w", response.StatusCode, body, err)
		}
		return nil
	})
}
