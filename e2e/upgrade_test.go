package e2e

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
)

const stored = 500

// roll restarts the servers one by one. Nothing may be migrated before the last one.
func roll(t *testing.T, c *cluster.Cluster, servers []*cluster.Server, to string, from, encoding agree.Encoding) {
	t.Helper()
	started := time.Now()
	for i, s := range servers {
		s.Restart(cluster.Options{Emulation: to})
		if i == len(servers)-1 {
			break
		}
		if standing := c.Standing(policies); standing.Common != "" {
			t.Errorf("%d of %d servers emulate %s, and yet they agree on %s", i+1, len(servers), to, standing.Common)
		}
		if found := c.Encodings(policies); found[from] == 0 {
			t.Errorf("%d of %d servers emulate %s, and nothing is left in %s: %v", i+1, len(servers), to, from, found)
		}
	}
	rolled := time.Since(started)
	settled := c.WaitSettled()
	wantEncoding(t, c, policies, encoding, stored)
	t.Logf("rolled to %s in %v, settled %v later", to, rolled.Round(time.Millisecond), settled.Round(time.Millisecond))
}

// Servers of two releases may run side by side for long, the elected one being of the
// older: whatever is only served by the newer ones has its stored set too.
func testMixedReleases(t *testing.T) {
	c := cluster.New(t)
	older := c.Start(cluster.Options{Emulation: "1.36"}, "one")[0]
	waitLeader(t, older)
	newer := c.Start(cluster.Options{Emulation: "1.37"}, "two")[0]
	c.WaitReporters(graceful, older, newer)
	bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	if reports := c.Reports(bundles); len(reports) != 1 {
		t.Fatalf("clustertrustbundles are reported by %v, want the newer server alone", reports)
	}
	bindings := schema.GroupResource{Group: policies.Group, Resource: "mutatingadmissionpolicybindings"}
	c.WaitSettled(policies, bindings)
	c.Check()
}
