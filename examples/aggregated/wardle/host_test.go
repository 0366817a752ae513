package wardle

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/pki"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	wardleToken  = "wardle-token"
	readyTimeout = 2 * time.Minute
)

// host is the cluster that the aggregated servers belong to: one kube-apiserver.
type host struct {
	*cluster.APIServer
	t       *testing.T
	cluster *cluster.Cluster
}

// startHost runs a kube-apiserver by this command and first arguments, and gives the user
// wardle the rights in rbac.yaml.
func startHost(t *testing.T, command ...string) *host {
	t.Helper()
	c := cluster.New(t)
	if err := testbed.WriteFiles(c.Dir, testbed.Admin, wardleToken+",wardle,2"); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, cluster: c, APIServer: start(t, c, "host", func(at *testbed.Server) (*exec.Cmd, error) {
		certificates, err := pki.Ensure(pki.Config{Dir: at.CertDir, Port: at.Port})
		if err != nil {
			return nil, err
		}
		flags := append(testbed.Flags(c.Dir, at.Port, "--etcd-servers="+at.Etcd), testbed.CertificateFlags(certificates)...)
		return exec.Command(command[0], append(command[1:], flags...)...), nil
	})}
	h.permit("../rbac.yaml")
	return h
}

// start runs a server and waits until it is ready.
func start(t *testing.T, c *cluster.Cluster, name string, command func(*testbed.Server) (*exec.Cmd, error)) *cluster.APIServer {
	t.Helper()
	at, err := c.Add(name, command)
	if err != nil {
		t.Fatal(err)
	}
	at.Admin = testbed.WithToken(at.URL(), testbed.AdminToken)
	s := cluster.NewAPIServer(t, at)
	s.Start()
	s.WaitReady()
	return s
}

// kubeconfig writes wardle's access to the host to a file.
func (h *host) kubeconfig() string {
	h.t.Helper()
	path := h.cluster.Path("wardle.kubeconfig")
	if err := testbed.WriteKubeconfig(path, testbed.WithToken(h.URL(), wardleToken)); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// permit creates the roles and bindings of a manifest.
func (h *host) permit(manifest string) {
	h.t.Helper()
	file, err := os.Open(manifest)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	client := h.Dynamic()
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

// route makes the host send requests for flunders to a server on this port.
func (h *host) route(port int) {
	h.t.Helper()
	const namespace, name = "wardle", "api"
	ctx := h.t.Context()
	if _, err := h.Kube().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}}}
	if _, err := h.Kube().CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		api := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + flunders.Group}}
		api.Spec = apiregistrationv1.APIServiceSpec{
			Group: flunders.Group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 15, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: name, Port: ptr.To(int32(port))},
		}
		if _, err := apiregistrationclient.NewForConfigOrDie(h.Config()).APIServices().Create(ctx, api, metav1.CreateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
	listed := h.Dynamic().Resource(schema.GroupVersionResource{Group: flunders.Group, Version: "v1beta1", Resource: flunders.Resource})
	cluster.Eventually(h.t, readyTimeout, "the host serves flunders", func(ctx context.Context) error {
		_, err := listed.List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

var slow = flag.Bool("slow", false, "also run the tests with real hosts, etcds and replicas, which take minutes")

func TestMain(m *testing.M) {
	cluster.Serve() // before flags are parsed: a process in another role has other flags
	flag.Parse()
	cluster.Main(m)
}

// TestSlow holds the tests with real hosts, etcds and replicas.
func TestSlow(t *testing.T) {
	if !*slow {
		t.Log("not run: they take minutes; run them with -slow")
		return
	}
	t.Run("Roll", testRoll)
	t.Run("StockHost", testStockHost)
}

// build compiles a command of this module, or of one that it requires.
func build(t *testing.T, command string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(command))
	cluster.Go(t, "build", "-o", program, command)
	return program
}

// replica is one aggregated API server.
type replica struct {
	*cluster.APIServer
	version string
}

// deployment is an aggregated API server: replicas on one etcd of their own, which is audited.
type deployment struct {
	t       *testing.T
	program string
	host    *host
	own     *cluster.Cluster
	started []*replica
}

func deploy(t *testing.T, h *host) *deployment {
	t.Helper()
	return &deployment{t: t, program: build(t, "github.com/concord-dev/concord/examples/aggregated"), host: h, own: cluster.New(t)}
}

// start runs a replica that stores flunders in a version.
func (s *deployment) start(name, version string) *replica {
	s.t.Helper()
	r := &replica{version: version}
	kubeconfig := s.host.kubeconfig()
	r.APIServer = start(s.t, s.own, name, func(at *testbed.Server) (*exec.Cmd, error) {
		return exec.Command(s.program, "--storage-version="+r.version,
			"--etcd-servers="+at.Etcd, "--etcd-prefix=/registry", "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(at.Port),
			"--cert-dir="+at.Dir, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
			"--identity-lease-duration="+cluster.LeaseDuration.String(), "--identity-lease-renew-interval="+cluster.RenewInterval.String(),
			"--controller-lease-duration="+cluster.LeaseDuration.String(), "--v=1"), nil
	})
	s.started = append(s.started, r)
	return r
}

// restart stops a replica in an orderly way, and starts it so that it stores flunders in another version.
func (r *replica) restart(version string) {
	r.Terminate()
	r.version = version
	r.Start()
	r.WaitReady()
}

func (r *replica) endpoint() load.Endpoint {
	return load.Endpoint{Name: r.Name, Client: r.Dynamic()}
}

var registered = regexp.MustCompile(`"Registered".* logger="member" server="(apiserver-[0-9a-f]+)"`)

// ids returns the IDs under which the replicas have registered in their own etcd.
func (s *deployment) ids() map[string][]agree.ServerID {
	ids := map[string][]agree.ServerID{}
	for _, r := range s.started {
		for _, match := range registered.FindAllStringSubmatch(r.Output(), -1) {
			ids[r.Name] = append(ids[r.Name], agree.ServerID(match[1]))
		}
	}
	return ids
}

// flunderLoad returns the flunders that clients write. The text is in a label, which looks the
// same in all versions.
func flunderLoad() load.Resource {
	labels := func(text string) map[string]any { return map[string]any{"text": strings.ReplaceAll(text, " ", "-")} }
	return load.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: flunders.Group, Version: "v1beta1", Resource: flunders.Resource},
		Kind:                 "Flunder", Namespace: "default",
		Fill: func(fields map[string]any, text string) { fields["metadata"] = map[string]any{"labels": labels(text)} },
		Update: func(text string) map[string]any {
			return map[string]any{"metadata": map[string]any{"labels": labels(text)}}
		},
	}
}

func encoding(version string) agree.Encoding {
	return agree.Encoding(flunders.Group + "/" + version)
}
