package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// A CRD's storage version is changed again and again under load. Nobody sees an error,
// every object follows, and the CRD ends with the one stored version.
func testStorageVersionFlips(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	writes := c.Load(load.Config{
		Resources: []load.Resource{widgetsV1, load.Custom(widgets.WithVersion("v2"), "Widget", "default")},
		Pause:     100 * time.Millisecond,
	}, servers...)
	for i, to := range []string{"v2", "v1", "v2"} {
		storeWidgetsIn(t, servers[i], to)
		t.Logf("settled %v after the change to %s", c.WaitSettled().Round(time.Millisecond), to)
		wantEncoding(t, c, widgets, widgetEncoding(to), stored)
		if standing := c.Standing(widgets); !slices.Equal(standing.StoredVersions(), []string{to}) {
			t.Errorf("storedVersions are %v, want %s alone", standing.StoredVersions(), to)
		}
	}
	wantNoFailures(t, c, writes)
	c.Check()
}

// Changes that follow each other before anything has settled: v1, v2, v1 between two
// looks leaves objects in v2 behind.
func testHastyFlips(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	writes := c.Load(load.Config{Resources: []load.Resource{widgetsV1}, Pause: 5 * time.Millisecond}, servers...)
	const flips = 20
	for i := range flips {
		cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
		storeWidgetsIn(t, servers[i%3], fmt.Sprint("v", 2-i%2))
	}
	t.Logf("settled %v after the last of %d changes", c.WaitSettled().Round(time.Millisecond), flips)
	c.CheckLoad(writes.Stop(), nil)
	wantEncoding(t, c, widgets, widgetEncoding("v1"), stored)
	wantFenceCounted(t, servers)
	c.Check()
}

// wantFenceCounted fails unless servers show all counters of the fence, and have tried writes again.
func wantFenceCounted(t *testing.T, servers []*cluster.Server) {
	t.Helper()
	counted := map[string]float64{}
	for _, s := range servers {
		for _, match := range fenceCounter.FindAllStringSubmatch(fetch(t, s, "/metrics", ""), -1) {
			n, err := strconv.ParseFloat(match[2], 64)
			must(t, err)
			counted[match[1]] += n
		}
	}
	if _, forwards := counted["forwards"]; !forwards || counted["mismatches"] == 0 || counted["retries"] == 0 {
		t.Errorf("the fence's counters are %v", counted)
	}
	t.Logf("the fence has counted %v", counted)
}

var fenceCounter = regexp.MustCompile(`(?m)^concord_fence_(mismatches|retries|forwards)_total\{\S* (\S+)$`)

// waitFailedMigration waits for a migration that ended with objects that could not be
// migrated, in such a way as wanted.
func waitFailedMigration(t *testing.T, s *cluster.Server, gr schema.GroupResource, wanted func(migrationv1alpha1.MigrationProgress) bool) (found migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	took := cluster.Eventually(t, cluster.SettleTimeout, "the migration ends with failures", func(ctx context.Context) error {
		var list migrationv1alpha1.StorageVersionMigrationList
		if err := s.Objects().List(ctx, &list); err != nil {
			return err
		}
		var seen []string
		for _, m := range list.Items {
			if m.Spec.Resource.Resource != gr.Resource {
				continue
			}
			seen = append(seen, fmt.Sprintf("%s: %+v", m.Name, m.Status))
			for _, condition := range m.Status.Conditions {
				if condition.Type == migrationv1alpha1.MigrationFailed && condition.Status == corev1.ConditionTrue &&
					condition.Reason == migrationv1alpha1.ReasonObjectsFailed && m.Status.Progress != nil && wanted(*m.Status.Progress) {
					found = m
					return nil
				}
			}
		}
		return fmt.Errorf("migrations: %s", strings.Join(seen, "; "))
	})
	t.Logf("the migration had ended with failures after %v: %s", took.Round(time.Millisecond), found.Status.Failures[0].Message)
	return found
}

// wantNoFailures stops clients, and fails if they lost a write, or one was refused.
func wantNoFailures(t *testing.T, c *cluster.Cluster, writes *load.Load) {
	t.Helper()
	report := writes.Stop()
	c.CheckLoad(report, nil)
	for _, f := range report.Failures {
		t.Errorf("a write failed: %v", f)
	}
}
