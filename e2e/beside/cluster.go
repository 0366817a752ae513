// Package beside runs stock kube-apiservers on one etcd for tests, each a process with a host name of its own, and
// concord controllers beside them. The test says which programs these are.
package beside

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/stock"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

// Patience is for changes that take seconds on an idle machine: migrations beside stock kube-apiservers give way to
// all other work.
const Patience = 8 * time.Minute

// AdminToken is the token of a user who may do everything.
const AdminToken = testbed.AdminToken

// Programs are the programs that a cluster is made of, beside its etcd.
type Programs struct {
	// APIServer is a kube-apiserver with these flags.
	APIServer func(flags ...string) *exec.Cmd
	// Controllers are concord controllers.
	Controllers func(Access, stock.Config) *exec.Cmd
}

// Access is how a program reaches a kube-apiserver.
type Access struct {
	URL, CAFile, Token string
	// Dir is the directory for the program's own files.
	Dir string `json:"-"`
}

// Config is the access as clients need it.
func (a Access) Config() *rest.Config {
	return &rest.Config{Host: a.URL, BearerToken: a.Token, TLSClientConfig: rest.TLSClientConfig{CAFile: a.CAFile}, QPS: -1}
}

// Cluster is an etcd and the kube-apiservers on it.
type Cluster struct {
	*testbed.Cluster
	T testing.TB

	programs Programs
	ca       string
	etcd     []string // the flags by which kube-apiservers reach it
}

// New starts an etcd. The package's TestMain calls cluster.Main or cluster.Serve.
func New(t testing.TB, p Programs) *Cluster {
	t.Helper()
	c := newCluster(t, p)
	etcd := cluster.StartEtcd(t, c.Path("etcd"), c.Dir)
	c.Endpoint, c.Raw, c.etcd = etcd.Endpoint, etcd.Raw, []string{"--etcd-servers=" + etcd.Endpoint}
	return c
}

// NewReplicated is like New, with an etcd of three members over TLS.
func NewReplicated(t testing.TB, p Programs) (*Cluster, *cluster.ReplicatedEtcd) {
	t.Helper()
	c := newCluster(t, p)
	etcd := cluster.StartReplicatedEtcd(t, c.Dir)
	c.Raw, c.etcd = etcd.Raw, etcd.Flags
	return c, etcd
}

// newCluster makes the files that all kube-apiservers share.
func newCluster(t testing.TB, p Programs) *Cluster {
	t.Helper()
	c := &Cluster{Cluster: testbed.In(t.TempDir()), T: t, programs: p}
	if err := testbed.WriteFiles(c.Dir, testbed.Admin); err != nil {
		t.Fatal(err)
	}
	certificate, private, err := certutil.GenerateSelfSignedCertKey("kubernetes.default.svc", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.ca = c.Write("tls.crt", string(certificate))
	c.Write("tls.key", string(private))
	return c
}

// Write makes a file and returns its path.
func (c *Cluster) Write(name, content string) string {
	c.T.Helper()
	path := c.Path(name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return path
}

// Values returns the values that etcd holds below a prefix, at a revision, or now if that is 0.
func (c *Cluster) Values(ctx context.Context, prefix string, revision int64) ([]string, error) {
	response, err := c.Raw.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		return nil, err
	}
	values := make([]string, 0, len(response.Kvs))
	for _, kv := range response.Kvs {
		values = append(values, string(kv.Value))
	}
	return values, nil
}

// APIServer is a running kube-apiserver.
type APIServer struct {
	*cluster.APIServer
	Cluster *Cluster
	// Address is host:port.
	Address string
}

// APIServer starts a kube-apiserver with this host name and waits until it is ready.
func (c *Cluster) APIServer(name string, flags ...string) *APIServer {
	c.T.Helper()
	return c.Start(c.programs.APIServer, name, flags...)
}

// Start is like APIServer, for another program.
func (c *Cluster) Start(program func(...string) *exec.Cmd, name string, flags ...string) *APIServer {
	c.T.Helper()
	at, err := c.Add(name, func(at *testbed.Server) (*exec.Cmd, error) {
		own := testbed.Flags(c.Dir, at.Port, "--tls-cert-file="+c.ca, "--tls-private-key-file="+c.Path("tls.key"))
		return onHost(name, program(slices.Concat(own, c.etcd, flags)...)), nil
	})
	if err != nil {
		c.T.Fatal(err)
	}
	s := &APIServer{APIServer: cluster.NewAPIServer(c.T, at), Cluster: c, Address: fmt.Sprintf("127.0.0.1:%d", at.Port)}
	at.Admin = s.Access(AdminToken).Config()
	s.Start()
	s.WaitReady()
	return s
}

// For returns the server for a subtest.
func (s *APIServer) For(t testing.TB) *APIServer {
	c := *s.Cluster
	c.T = t
	return &APIServer{APIServer: s.APIServer, Cluster: &c, Address: s.Address}
}

// onHost makes a program run with this host name, from which kube-apiserver derives its identity.
func onHost(name string, program *exec.Cmd) *exec.Cmd {
	unshare := []string{"--uts"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	// Each program replaces the one before, so that all of it is one process.
	script := `echo "$0" > /proc/sys/kernel/hostname && exec "$@"`
	cmd := exec.Command("unshare", slices.Concat(unshare, []string{"sh", "-c", script, name}, program.Args)...)
	cmd.Env = program.Env
	return cmd
}

// Access returns the access to this server with a token.
func (s *APIServer) Access(token string) Access {
	return Access{URL: s.URL(), CAFile: s.Cluster.ca, Token: token, Dir: s.Cluster.Dir}
}

// Controllers starts controllers that use this server as the administrator.
func (s *APIServer) Controllers(name string, config stock.Config) *cluster.Process {
	s.Cluster.T.Helper()
	return s.ControllersAs(name, AdminToken, config)
}

// ControllersAs runs controllers that authenticate with a token.
func (s *APIServer) ControllersAs(name, token string, config stock.Config) *cluster.Process {
	s.Cluster.T.Helper()
	config.Instance = name
	access := s.Access(token)
	p := cluster.NewProcess(s.Cluster.T, name, s.Cluster.Dir, func() *exec.Cmd { return s.Cluster.programs.Controllers(access, config) })
	p.Start()
	return p
}

// Kubeconfig writes a kubeconfig and returns its path.
func (a Access) Kubeconfig(name string) (string, error) {
	path := filepath.Join(a.Dir, name+".kubeconfig")
	return path, testbed.WriteKubeconfig(path, a.Config())
}

// Eventually waits until check returns nil. After the timeout the test fails with what, and
// check's last error.
func Eventually(t testing.TB, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	cluster.EventuallyEach(t, timeout, 10*time.Second, what, check)
}
