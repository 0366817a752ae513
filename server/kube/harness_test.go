package kube_test

import (
	"context"
	"crypto/tls"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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

// TestSlow has the tests that take minutes: rolls, pauses and outages.
func TestSlow(t *testing.T) {
	if !*slow {
		t.Log("not run: they take minutes; run them with -slow")
		return
	}
	t.Run("Flags", testFlags)
	t.Run("GateOff", testGateOff)
	t.Run("Egress", testEgress)
	t.Run("BrokenWebhook", testBrokenWebhook)
	t.Run("OwnUpgrade", testOwnUpgrade)
	t.Run("Paused", testPaused)
	t.Run("BothMigrators", testBothMigrators)
	t.Run("MigratorBesideStock", testMigratorBesideStock)
}

// The roles of the test binary, by name.
const (
	ours = "concord" // concord kube-apiserver
	// earlier is "concord kube-apiserver" of Concord's last release, which is a program of its own.
	earlier = "earlier"
	stock   = "stock" // Kubernetes' own kube-apiserver
	etcd    = cluster.EtcdProgram
	// manager is Kubernetes' own kube-controller-manager.
	manager = "kube-controller-manager"
	// listing prints the flags of ours and of stock.
	listing = "flags"
)

// TestMain makes the test binary run as one of these programs, if it was started in that role.
func TestMain(m *testing.M) {
	cluster.Serve()
	process.Serve(map[string]func(context.Context, []string) error{
		ours: func(ctx context.Context, args []string) error {
			cmd := kube.NewCommand()
			cmd.SetArgs(args)
			return cmd.ExecuteContext(ctx)
		},
		stock: func(context.Context, []string) error { return cli.RunNoErrOutput(stockserver.Command()) },
		manager: func(context.Context, []string) error {
			return cli.RunNoErrOutput(stockserver.ControllerManagerCommand())
		},
		listing: func(context.Context, []string) error { return listFlags(os.Stdout) },
	})
	flag.Parse()
	os.Exit(cluster.Suite{M: m}.Run())
}

// start runs the test binary in a role, until the test ends.
func start(t testing.TB, role, name, dir string, args ...string) *cluster.Process {
	t.Helper()
	p := cluster.NewProcess(t, name, dir, func() *exec.Cmd { return process.Self(role, args...) })
	p.Start()
	return p
}

// control has the etcd and the files of a control plane. Servers are added to it.
type control struct {
	*testbed.Cluster
	t testing.TB
	// etcd are the flags with which servers reach the etcd.
	etcd []string
}

func newFiles(t testing.TB) *control { return &control{Cluster: testbed.In(t.TempDir()), t: t} }

// The tokens of --token-auth-file.
const (
	adminToken    = testbed.AdminToken
	strangerToken = "stranger" // of a user in no group but system:authenticated
)

// newControl starts an etcd of one member.
func newControl(t testing.TB) *control {
	t.Helper()
	c := newFiles(t)
	endpoint, peer := "http://"+cluster.FreeAddress(t), "http://"+cluster.FreeAddress(t)
	start(t, etcd, "etcd", c.Dir, append(testbed.EtcdFlags(c.Path("etcd"), endpoint, peer), "--unsafe-no-fsync")...)
	c.etcd = []string{"--etcd-servers=" + endpoint}
	c.connect(nil, endpoint)
	c.prepare()
	return c
}

func (c *control) connect(config *tls.Config, endpoints ...string) {
	c.t.Helper()
	var err error
	c.Raw, err = clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, Logger: zap.NewNop(), DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second})
	must(c.t, err)
	c.t.Cleanup(func() { _ = c.Raw.Close() })
	eventually(c.t, time.Minute, "etcd answers", func(ctx context.Context) error {
		return testbed.Answers(ctx, c.Raw)
	})
}

// prepare writes the files that all servers of a control plane share.
func (c *control) prepare() {
	c.t.Helper()
	must(c.t, testbed.WriteFiles(c.Dir, testbed.Admin, strangerToken+",stranger,2"))
}

// write writes a file, and returns its path.
func (c *control) write(name, content string) string {
	c.t.Helper()
	path := c.Path(name)
	must(c.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// apiserver is a running kube-apiserver, Concord's or a stock one.
type apiserver struct {
	*cluster.APIServer
	t testing.TB
}

// start starts a server with these flags, beside those that every server needs.
func (c *control) start(role, name string, flags ...string) *apiserver {
	c.t.Helper()
	s := c.add(name, func(at *testbed.Server) *exec.Cmd {
		args := slices.Concat(testbed.Flags(c.Dir, at.Port, "--cert-dir="+at.Dir), c.etcd) // each server makes its own certificate
		switch role {
		case earlier:
			return exec.Command(cluster.Earlier(c.t), slices.Concat([]string{"kube-apiserver"}, args, flags)...)
		case ours:
			args = append(args, "--migration-settle=2s") // flags may set another time
		}
		return process.Self(role, append(args, flags...)...)
	})
	s.Admin = s.as(adminToken)
	s.Start()
	return s
}

// add adds a server that is not started.
func (c *control) add(name string, command func(*testbed.Server) *exec.Cmd) *apiserver {
	c.t.Helper()
	at, err := c.Add(name, func(at *testbed.Server) (*exec.Cmd, error) { return command(at), nil })
	must(c.t, err)
	return &apiserver{cluster.NewAPIServer(c.t, at), c.t}
}

// ready starts a server and waits until it is ready.
func (c *control) ready(role, name string, flags ...string) *apiserver {
	c.t.Helper()
	s := c.start(role, name, flags...)
	s.WaitReady()
	return s
}

// stop sends SIGTERM to the server, which has to end without an error. kube-apiserver waits up to a
// minute for a connection that was made at that moment.
func (s *apiserver) stop() {
	s.t.Helper()
	must(s.t, s.Run().Terminate(s.t.Context(), 3*time.Minute))
}

// end is stop, after which clients are not sent to the server any more: it has taken its address away.
func (s *apiserver) end() {
	s.t.Helper()
	s.stop()
	if ended, ok := s.Wait(time.Minute); !ok || strings.Contains(ended.Stderr, "Unable to remove endpoints") {
		s.t.Errorf("%s leaves its address in default/kubernetes", s.Name)
	}
}

// as returns a client configuration with a token; "" is for anonymous requests.
func (s *apiserver) as(token string) *rest.Config {
	config := testbed.WithToken(s.URL(), token)
	config.Timeout = 30 * time.Second
	return config
}

// eventually waits until check returns nil. After the timeout the test fails with what, and
// check's last error.
func eventually(t testing.TB, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	cluster.EventuallyEach(t, timeout, 20*time.Second, what, check)
}

// peerFlags make servers proxy requests for resources that they do not serve to servers that do.
func (c *control) peerFlags() []string {
	c.t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("peers", nil, nil)
	must(c.t, err)
	file := c.write("peers.crt", string(certificate))
	return []string{"--feature-gates=UnknownVersionInteroperabilityProxy=true", "--peer-ca-file=" + file,
		"--proxy-client-cert-file=" + file, "--proxy-client-key-file=" + c.write("peers.key", string(key))}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
