package e2e

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const stored = 500

// Servers of two releases may run side by side for long, the elected one being of the
// older: resources that are only served by the newer ones have their stored sets too.
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

// Concord itself is upgraded from the release before, back and forward again, under load: servers
// of both releases agree and migrate together, whichever of them leads.
func testOwnUpgrade(t *testing.T) {
	c := cluster.New(t)
	earlier, newest := cluster.Options{Earlier: true}, cluster.Options{}
	servers := c.Start(earlier, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	writes := c.Load(load.Config{Resources: []load.Resource{widgetsV1, load.ConfigMaps("default")}, Pause: 50 * time.Millisecond}, servers...)
	for _, step := range []struct {
		what  string
		to    []cluster.Options
		store string
	}{
		{"one upgraded", []cluster.Options{newest, earlier, earlier}, "v2"},
		{"two upgraded", []cluster.Options{newest, newest, earlier}, "v1"},
		{"one rolled back", []cluster.Options{earlier, newest, earlier}, "v2"},
		{"all upgraded", []cluster.Options{newest, newest, newest}, "v1"},
		{"all rolled back", []cluster.Options{earlier, earlier, earlier}, "v2"},
		{"all upgraded again", []cluster.Options{newest, newest, newest}, "v1"},
	} {
		for i, s := range servers {
			if s.Options() != step.to[i] {
				s.Restart(step.to[i])
			}
		}
		c.WaitReporters(graceful, servers...)
		storeWidgetsIn(t, servers[0], step.store)
		took := cluster.Eventually(t, 3*time.Minute, step.what+": all widgets in "+step.store, func(context.Context) error {
			return encodedAs(c, widgets, widgetEncoding(step.store), stored)
		})
		t.Logf("%s: migrated to %s %v after the change", step.what, step.store, took.Round(time.Millisecond))
	}
	c.WaitSettled()
	cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
	c.CheckLoad(writes.Stop(), load.BrokenTo("one", "two", "three"))
	expectCensus(t, c)
	c.Check()
}
