package wardle

import (
	"flag"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

var slow = flag.Bool("slow", false, "also run the tests with real hosts, etcds and replicas, which take minutes")

func TestMain(m *testing.M) {
	cluster.Serve() // before flags are read: a process that is not the tests has others
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

// restart ends a replica in good order and has it store flunders in another version.
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

// ids are the identities that the replicas had in their own etcd.
func (s *deployment) ids() map[string][]agree.ServerID {
	ids := map[string][]agree.ServerID{}
	for _, r := range s.started {
		for _, match := range registered.FindAllStringSubmatch(r.Output(), -1) {
			ids[r.Name] = append(ids[r.Name], agree.ServerID(match[1]))
		}
	}
	return ids
}

// flunderLoad writes flunders, whose text is in a label: it looks the same in all versions.
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
