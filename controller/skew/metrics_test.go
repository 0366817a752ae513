package skew

import (
	"context"
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

var clientKey = client.ObjectKey{Name: versionv1alpha1.ClusterVersionName}

const help = `
# HELP concord_server_skew_allowed [ALPHA] 1 if every server's emulation version is one that all others allow, 0 if not; absent while that cannot be told.
# TYPE concord_server_skew_allowed gauge
# HELP concord_server_skew_releases [ALPHA] Minor releases between the lowest and the highest emulation version of servers.
# TYPE concord_server_skew_releases gauge
# HELP concord_server_skew_servers [ALPHA] Servers by emulation version, as the elected server sees them.
# TYPE concord_server_skew_servers gauge
`

// expose returns the metrics with their help, as testutil wants them: help only of the metrics
// that have values.
func expose(samples string) string {
	var lines []string
	for _, line := range strings.Split(help, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(samples, fields[2]) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n" + samples
}

// TestMetrics: the gauges follow the servers, and have no value when nobody leads here or
// nothing can be told.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	registry := metrics.NewKubeRegistry()
	for _, r := range w.c.cfg.Metrics.Registerables() {
		registry.MustRegister(r)
	}
	expect := func(when, samples string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(expose(samples))); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("before leading", "")
	w.servers("a"+n36, "b"+n37, "c"+n37)
	w.step()
	expect("within the allowance", `
concord_server_skew_allowed 1
concord_server_skew_releases 1
concord_server_skew_servers{emulation_version="1.36"} 1
concord_server_skew_servers{emulation_version="1.37"} 2
`)
	w.servers("b"+n37, "c"+old)
	w.step()
	expect("out of the allowance", `
concord_server_skew_allowed 0
concord_server_skew_releases 2
concord_server_skew_servers{emulation_version="1.35"} 1
concord_server_skew_servers{emulation_version="1.37"} 1
`)
	w.servers("b"+n37, "c")
	w.step()
	expect("a server does not tell", `
concord_server_skew_releases 0
concord_server_skew_servers{emulation_version="1.37"} 1
concord_server_skew_servers{emulation_version="unknown"} 1
`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.c.Run(ctx)
	expect("after leading", "")
}
