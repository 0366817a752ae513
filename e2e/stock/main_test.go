package stock_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
)

func TestMain(m *testing.M) { itself.Main(m) }

// TestOneServer has the stories beside one kube-apiserver, each with a custom resource of its own. The controllers have
// the ServiceAccount of deploy's manifests, beside the guards, and wait less. By default they do migrations of Kubernetes'
// own API, since no kube-controller-manager is there. Owner references to objects that they may not change are refused.
func TestOneServer(t *testing.T) {
	c := beside.New(t, itself.Programs)
	flags, log := audited(c)
	a := c.APIServer("a", append(flags, "--runtime-config=storagemigration.k8s.io/v1=true", "--enable-admission-plugins=OwnerReferencesPermissionEnforcement")...)
	t.Run("OnlyAsStored", func(t *testing.T) { testOnlyAsStored(t, a.For(t)) }) // without controllers

	installed, err := beside.Manifests(deployed)
	must(t, err)
	a.Install(installed)
	config := itself.Quick()
	config.LeaderElect, config.ElectionNamespace, config.InstallDefinitions, config.CleanFields = true, beside.DeployedNamespace, false, true
	config.Address, config.MirrorAfter, config.Settings.PruneAfter = cluster.FreeAddress(t), 3*time.Second, 0
	a.ControllersAs("controllers", a.DeployedToken(), config)
	t.Run("DeployedPermissions", func(t *testing.T) { testDeployedPermissions(t, a.For(t), installed, log, config.Address) })
	t.Run("States", func(t *testing.T) { testStates(t, a.For(t)) })
	t.Run("Failures", func(t *testing.T) {
		t.Run("Unproven", func(t *testing.T) { t.Parallel(); testUnproven(t, a.For(t)) })
		t.Run("BadObject", func(t *testing.T) { t.Parallel(); testBadObject(t, a.For(t)) })
	})
	allowed(t, permissions(t, installed), log) // nothing was refused in these, either
}

// TestTwoServers has the stories beside two kube-apiservers, one after the other, each with a custom resource of its
// own. The second server reaches etcd through a proxy.
func TestTwoServers(t *testing.T) {
	c := beside.New(t, itself.Programs)
	etcd := newHolding(t, strings.TrimPrefix(c.Endpoint, "unix://"))
	a := c.APIServer("a")
	b := c.Start(func(flags ...string) *exec.Cmd {
		for i, flag := range flags {
			if strings.HasPrefix(flag, "--etcd-servers=") {
				flags[i] = "--etcd-servers=http://" + etcd.Addr().String()
			}
		}
		return itself.Programs.APIServer(flags...)
	}, "b", "--request-timeout=1h")
	t.Run("Operator", func(t *testing.T) { testOperator(t, a.For(t), b.For(t)) }) // without controllers

	config := itself.Quick()
	config.LeaderElect, config.MaxObjectsPerSecond, config.CleanFields = true, 500, true
	running := map[string]*cluster.Process{}
	for _, name := range []string{"first", "second"} {
		running[name] = a.Controllers(name, config)
	}
	t.Run("Flip", func(t *testing.T) { testFlip(t, a.For(t), b.For(t), running) })
	t.Run("Paused", func(t *testing.T) { testPaused(t, a.For(t), b.For(t)) })
	t.Run("PausedInWrite", func(t *testing.T) { testPausedInWrite(t, a.For(t), b.For(t)) })
	t.Run("LateCreate", func(t *testing.T) { testLateCreate(t, a.For(t), b.For(t), etcd) })
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
