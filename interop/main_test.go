package interop

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// currentRelease is the release that go.mod names.
const currentRelease = "1.37"

var (
	releaseName = flag.String("release", currentRelease, "the release of Kubernetes whose programs are run")
	keep        = flag.String("programs", "", "a directory where programs that were built are kept for the next run")
)

// release is a release of Kubernetes, and how to run its own migrator.
type release struct {
	modfile string
	// migrations is the version in which storagemigration.k8s.io is served.
	migrations string
	// emulates is an older release that stores some built-in resources in other versions.
	emulates string
	// flags are the flags of kube-apiserver and kube-controller-manager that turn on the migrator.
	flags []string
	// policies is the encoding in which the release stores MutatingAdmissionPolicies; Concord's
	// server stores them in v1.
	policies string
	// names says that a kube-apiserver names the objects of a list that it cannot read.
	names bool
	// unplaced says that Leases do not tell the addresses of kube-apiservers. Tests then run only one of them.
	unplaced bool
}

var releases = map[string]release{
	currentRelease: {modfile: "go.mod", migrations: "v1", emulates: "1.36", policies: "admissionregistration.k8s.io/v1", names: true},
	"1.36": {modfile: "release-1.36.mod", migrations: "v1beta1", emulates: "1.34", flags: []string{"--feature-gates=StorageVersionMigrator=true"},
		policies: "admissionregistration.k8s.io/v1beta1"},
	"1.34": {modfile: "release-1.34.mod", migrations: observed.AlphaMigrations, unplaced: true},
}

func tested(t testing.TB) release {
	t.Helper()
	r, ok := releases[*releaseName]
	if !ok {
		t.Fatalf("there is no module file of release %s", *releaseName)
	}
	return r
}

func (r release) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: r.migrations, Resource: "storageversionmigrations"}
}

// apiserverFlags returns the flags with which kube-apiserver serves the API of its own migrator.
func (r release) apiserverFlags() []string {
	return append([]string{"--runtime-config=storagemigration.k8s.io/" + r.migrations + "=true"}, r.flags...)
}

// places returns the addresses of kube-apiservers whose Leases do not tell them: that of a, which is the only one.
func (r release) places(a *beside.APIServer) map[string]string {
	if !r.unplaced {
		return nil
	}
	return map[string]string{"": a.Address}
}

// built has the directory of the programs, once they are built.
var built struct {
	sync.Mutex
	dir string
}

func TestMain(m *testing.M) {
	cluster.Serve()
	code := cluster.Suite{M: m}.Run()
	if built.dir != "" && *keep == "" {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// program builds the programs, once, and returns the path of one.
func program(t testing.TB, name string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		began := time.Now()
		dir := *keep
		if dir == "" {
			var err error
			if dir, err = os.MkdirTemp("", "concord-interop-"); err != nil {
				t.Fatal(err)
			}
		}
		const kubernetes = "k8s.io/kubernetes"
		modfile := "-modfile=" + tested(t).modfile
		// Programs of Kubernetes know their release by this alone.
		version := cluster.Go(t, "list", modfile, "-m", "-f", "{{.Version}}", kubernetes)
		cluster.Go(t, "build", modfile, "-ldflags=-X k8s.io/component-base/version.gitVersion="+version, "-o", dir+"/",
			kubernetes+"/cmd/kube-apiserver", kubernetes+"/cmd/kube-controller-manager")
		cluster.Go(t, "build", "-o", dir+"/", "github.com/concord-dev/concord/cmd/concord")
		built.dir = dir
		t.Logf("kube-apiserver and kube-controller-manager %s and concord were built in %s", version, time.Since(began).Round(time.Second))
	}
	return filepath.Join(built.dir, name)
}

// newCluster returns a cluster of the release's programs and concord controllers.
func newCluster(t testing.TB) *beside.Cluster {
	t.Helper()
	return beside.New(t, programs(t))
}

// programs returns the release's kube-apiserver, and concord controllers.
func programs(t testing.TB) beside.Programs {
	t.Helper()
	apiserver, concord := program(t, "kube-apiserver"), program(t, "concord")
	return beside.Programs{
		APIServer: func(flags ...string) *exec.Cmd {
			return exec.Command(apiserver, append(flags, tested(t).apiserverFlags()...)...)
		},
		Controllers: func(a beside.Access, c stock.Config) *exec.Cmd {
			kubeconfig, err := a.Kubeconfig(c.Instance)
			if err != nil {
				panic(err) // its directory is the test's own
			}
			return exec.Command(concord, append([]string{"controllers", "--kubeconfig=" + kubeconfig}, controllersFlags(c)...)...)
		},
	}
}

// controllersFlags returns the flags of concord controllers that are equivalent to a Config.
func controllersFlags(c stock.Config) []string {
	_, port, err := net.SplitHostPort(cmp.Or(c.Address, "127.0.0.1:0"))
	if err != nil {
		panic(err) // tests make it
	}
	flags := []string{
		"--port=" + port, "--poll=" + c.Poll.String(), "--settle=" + c.Settle.String(), "--replica-timeout=" + c.ReplicaTimeout.String(),
		"--prune-after=" + c.Settings.PruneAfter.String(), fmt.Sprintf("--leader-elect=%t", c.LeaderElect),
		"--leader-elect-resource-namespace=" + cmp.Or(c.ElectionNamespace, "kube-system"),
		fmt.Sprintf("--install-crds=%t", c.InstallDefinitions), fmt.Sprintf("--built-in-resources=%t", c.Settings.BuiltIn),
		fmt.Sprintf("--clean-managed-fields=%t", c.CleanFields), fmt.Sprintf("--max-objects-per-second=%d", c.MaxObjectsPerSecond),
		"--mirror=" + string(cmp.Or(c.Mirror, stock.MirrorAuto)), "--mirror-after=" + c.MirrorAfter.String(),
	}
	for lease, address := range c.ReplicaAddresses {
		flags = append(flags, "--replica-address="+lease+"="+address)
	}
	return flags
}

// guarded starts a kube-apiserver and installs the manifests of folder deploy, with the guards.
func guarded(t testing.TB, c *beside.Cluster) *beside.APIServer {
	t.Helper()
	a := c.APIServer("a")
	objects, err := beside.Manifests("../deploy/install/controllers-and-guards.yaml")
	must(t, err)
	a.Install(objects)
	return a
}

// deployed starts concord controllers with the ServiceAccount of deploy's manifests, which wait no
// longer than tests need. addresses has, by the name of the Lease, the addresses of kube-apiservers
// whose Leases do not tell them; edits change the configuration.
func deployed(a *beside.APIServer, addresses map[string]string, edits ...func(*stock.Config)) *cluster.Process {
	config := stock.Config{
		Poll: 2 * time.Second, Settle: 3 * time.Second, ReplicaTimeout: 10 * time.Second, LeaderElect: true, ElectionNamespace: beside.DeployedNamespace,
		CleanFields: true, ReplicaAddresses: addresses, Settings: observed.Settings{PruneAfter: 3 * time.Second},
	}
	for _, edit := range edits {
		edit(&config)
	}
	return a.ControllersAs("controllers", a.DeployedToken(), config)
}

// The controllers that kube-controller-manager runs: its migrator, and the one that it needs.
const (
	withMigrator    = "--controllers=garbage-collector-controller,storage-version-migrator-controller"
	withoutMigrator = "--controllers=garbage-collector-controller"
)

// controllerManager starts kube-controller-manager.
func controllerManager(t testing.TB, a *beside.APIServer, flags ...string) *cluster.Process {
	t.Helper()
	kubeconfig, err := a.Access(beside.AdminToken).Kubeconfig("kube-controller-manager")
	must(t, err)
	path := program(t, "kube-controller-manager")
	port := cluster.FreePort(t)
	p := cluster.NewProcess(t, "kube-controller-manager", a.Cluster.Dir, func() *exec.Cmd {
		return exec.Command(path, slices.Concat([]string{
			"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + filepath.Join(a.Cluster.Dir, "controller-manager"),
		}, tested(t).flags, flags)...)
	})
	p.Start()
	return p
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
