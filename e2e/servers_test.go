package e2e

import (
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// graceful is how long an orderly stop may take to be noticed by everybody.
const graceful = time.Minute

// Three servers on one etcd agree; one that stops in good order is gone from the reports
// when its process ends, and one that is killed soon after its Lease.
func TestThreeServers(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	c.WaitReporters(graceful, servers...)
	t.Logf("the stored sets were known %v after the servers were ready", c.WaitSettled().Round(time.Millisecond))
	writes := c.Load(load.Config{Resources: []load.Resource{load.ConfigMaps("default"), load.Policies()}}, servers...)

	stopped, _ := servers[0].ID()
	servers[0].Terminate()
	c.Ledger(func(l *audit.Ledger) {
		if l.Reported().Has(stopped) {
			t.Error("the reports of a stopped server outlive its process")
		}
	})
	c.WaitReporters(graceful, servers[1], servers[2])

	servers[1].Kill()
	took := c.WaitReporters(restored, servers[2])
	t.Logf("agreement was restored %v after SIGKILL, with Leases of %v", took.Round(time.Millisecond), cluster.LeaseDuration)
	t.Logf("and settled %v later", c.WaitSettled().Round(time.Millisecond))
	c.CheckLoad(writes.Stop(), load.BrokenTo("one", "two"))
	c.Check()
	c.Ledger(func(l *audit.Ledger) {
		if found := l.Rewrites(); found != 0 {
			t.Errorf("%d objects were rewritten though no encoding has changed", found)
		}
	})
}
