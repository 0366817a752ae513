package kube_test

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/cli"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/server/kube"
	stockserver "github.com/concord-dev/concord/server/stock"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

var slow = flag.Bool("slow", false, "also run the tests that take more than 20 s each")

// TestSlow holds the tests of rolls, pauses and outages.
func TestSlow(t *testing.T) {
	if !*slow {
		t.Log("not run: they take minutes; run them with -slow")
		return
	}
	t.Run("Flags", testFlags)
	t.Run("Egress", testEgress)
	t.Run("Encryption", testEncryption)
	t.Run("KMS", testKMS)
	t.Run("BrokenWebhook", testBrokenWebhook)
	t.Run("Roll", testRoll)
	t.Run("OwnUpgrade", testOwnUpgrade)
	t.Run("Paused", testPaused)
	t.Run("ReplicatedEtcd", testReplicatedEtcd)
	t.Run("BothMigrators", testBothMigrators)
	t.Run("MigratorBesideStock", testMigratorBesideStock)
}

// roleVariable makes the test binary one of the programs below.
const roleVariable = "CONCORD_KUBE_TEST_ROLE"

const (
	ours = "concord" // concord kube-apiserver
	// earlier is that of Concord's release before this one.
	earlier = "earlier"
	stock   = "stock" // Kubernetes' own kube-apiserver
	etcd    = "etcd"
	// manager is Kubernetes' own kube-controller-manager.
	manager = "kube-controller-manager"
	// listing prints the flags of ours and of the stock one.
	listing = "flags"
)

// TestMain has the test binary double as all the programs that the tests run.
func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		flag.Parse()
		os.Exit(cluster.Suite{M: m}.Run())
	case ours:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		cmd := kube.NewCommand()
		cmd.SetArgs(os.Args[1:])
		if err := cmd.ExecuteContext(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "concord:", err)
			stop()
			os.Exit(1) //nolint:gocritic // stop is called
		}
	case stock:
		os.Exit(cli.Run(stockserver.Command()))
	case manager:
		os.Exit(cli.Run(stockserver.ControllerManagerCommand()))
	case listing:
		if err := listFlags(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case etcd:
		etcdmain.Main(os.Args)
	}
}

// start runs the test binary in a role until it ends or the test does.
func start(t testing.TB, role, name, log string, args ...string) *process.Process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if role == earlier {
		executable, args = cluster.Earlier(t), append([]string{"kube-apiserver"}, args...)
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p, err := process.Start(name, cmd, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s: %s", name, p.Tail())
		}
	})
	return p
}

// control is a control plane's etcd and files. Servers are added to it.
type control struct {
	t   testing.TB
	dir string
	// etcd are the flags with which servers reach it, raw reads and writes it directly.
	etcd []string
	raw  *clientv3.Client
}

// The tokens of --token-auth-file and the users that they stand for.
const (
	adminToken    = testbed.AdminToken
	strangerToken = "stranger" // authenticated, in no group but system:authenticated
)

// newControl starts an etcd of one member.
func newControl(t testing.TB) *control {
	t.Helper()
	c := &control{t: t, dir: t.TempDir()}
	endpoint, peer := "http://"+cluster.FreeAddress(t), "http://"+cluster.FreeAddress(t)
	start(t, etcd, "etcd", filepath.Join(c.dir, "etcd.log"), append(testbed.EtcdFlags(filepath.Join(c.dir, "etcd"), endpoint, peer), "--unsafe-no-fsync")...)
	c.etcd = []string{"--etcd-servers=" + endpoint}
	c.connect(nil, endpoint)
	c.prepare()
	return c
}

func (c *control) connect(config *tls.Config, endpoints ...string) {
	c.t.Helper()
	var err error
	c.raw, err = clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = c.raw.Close() })
	eventually(c.t, time.Minute, "etcd answers", func(ctx context.Context) error {
		_, err := c.raw.Get(ctx, "health")
		return err
	})
}

// prepare writes the files that all servers of a control plane share.
func (c *control) prepare() {
	c.t.Helper()
	if err := testbed.WriteFiles(c.dir, testbed.Admin, strangerToken+",stranger,2"); err != nil {
		c.t.Fatal(err)
	}
}

// write makes a file and returns its path.
func (c *control) write(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// apiserver is a running kube-apiserver, ours or a stock one.
type apiserver struct {
	*process.Process
	cluster.Clients
	t    testing.TB
	name string
	url  string
	// access is the administrator's, nil for that of a token.
	access *rest.Config
}

// start runs a server with more flags than those every one needs.
func (c *control) start(role, name string, flags ...string) *apiserver {
	c.t.Helper()
	port := cluster.FreePort(c.t)
	certificates := filepath.Join(c.dir, name)
	if err := os.MkdirAll(certificates, 0o700); err != nil {
		c.t.Fatal(err)
	}
	// Each makes a certificate of its own.
	own := []string{}
	if role == ours {
		own = append(own, "--migration-settle=2s") // flags may say otherwise
	}
	args := slices.Concat(testbed.Flags(c.dir, port, "--cert-dir="+certificates), c.etcd, own, flags)
	return newAPIServer(c.t, start(c.t, role, name, filepath.Join(c.dir, name+".log"), args...), name, testbed.LoopbackURL(port))
}

func newAPIServer(t testing.TB, p *process.Process, name, url string) *apiserver {
	s := &apiserver{Process: p, t: t, name: name, url: url}
	s.Clients = cluster.NewClients(t, func() (*rest.Config, error) { return s.admin(), nil })
	return s
}

// ready starts a server and waits until it is ready.
func (c *control) ready(role, name string, flags ...string) *apiserver {
	c.t.Helper()
	s := c.start(role, name, flags...)
	s.waitReady()
	return s
}

// waitReady waits until the server is ready.
func (s *apiserver) waitReady() {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, s.name+" is ready", func(ctx context.Context) error {
		select {
		case <-s.Done():
			s.t.Fatal(s.Failure())
		default:
		}
		status, body, err := s.get(ctx, "/readyz?verbose")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

// end asks the server to end, and it has to do so without an error. kube-apiserver waits up to
// a minute for a connection that was made in the moment of its end.
func (s *apiserver) end() {
	s.t.Helper()
	if err := s.Terminate(s.t.Context(), 3*time.Minute); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends the server as a crash does.
func (s *apiserver) kill() {
	s.t.Helper()
	if err := s.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *apiserver) signal(signal syscall.Signal) {
	s.t.Helper()
	if err := s.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

// as is access to the server with a token, "" for an anonymous one.
func (s *apiserver) as(token string) *rest.Config {
	config := testbed.WithToken(s.url, token)
	config.Timeout = 30 * time.Second
	return config
}

func must[C any](t testing.TB, make func(*rest.Config) (C, error), config *rest.Config) C {
	t.Helper()
	c, err := make(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// admin is an administrator's access.
func (s *apiserver) admin() *rest.Config {
	if s.access == nil {
		return s.as(adminToken)
	}
	config := rest.CopyConfig(s.access)
	config.QPS, config.Timeout = -1, 30*time.Second
	return config
}

// get asks for a path as the administrator.
func (s *apiserver) get(ctx context.Context, path string) (status int, body string, err error) {
	return testbed.Get(ctx, s.admin(), path, nil)
}

// eventually waits until check returns nil. After the timeout the test fails with what, and
// check's last error.
func eventually(t testing.TB, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	cluster.EventuallyEach(t, timeout, 20*time.Second, what, check)
}

// peerFlags have a server proxy requests for resources that it does not serve to peers that do.
func (c *control) peerFlags() []string {
	c.t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("peers", nil, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	file := c.write("peers.crt", string(certificate))
	return []string{"--feature-gates=UnknownVersionInteroperabilityProxy=true", "--peer-ca-file=" + file,
		"--proxy-client-cert-file=" + file, "--proxy-client-key-file=" + c.write("peers.key", string(key))}
}
