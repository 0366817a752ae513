package generic_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

const (
	metricsReference = "../../docs/metrics.md"
	monitoringFolder = "../../deploy/monitoring/"
)

// monitoredMetric finds the metrics in alerts and dashboard; TestExpressions of deploy holds it
// against PromQL's own parser.
var monitoredMetric = regexp.MustCompile(`\b(concord|storage_migrator|apiserver)_[a-z_]+[a-z]\b`)

// eventual are metrics that a server shows only after a write has met a changed StorageVersion,
// which this test does not bring about: HastyFlips of e2e does, and looks for them on its servers.
var eventual = sets.New("concord_fence_retries_total", "concord_fence_forwards_total")

// scraped are the metrics of the shared server: names of samples, and types of families.
func scraped(ctx context.Context) (samples sets.Set[string], types map[string]string, err error) {
	raw, err := shared.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, nil, err
	}
	samples, types = sets.New[string](), map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[1] == "TYPE" {
			types[fields[2]] = fields[3]
		} else if !strings.HasPrefix(line, "#") {
			samples.Insert(line[:strings.IndexAny(line, "{ ")])
		}
	}
	return samples, types, nil
}

// TestMonitoredMetrics: every metric that an alert or the dashboard names is shown by a running
// server.
func TestMonitoredMetrics(t *testing.T) {
	reference, err := os.ReadFile(metricsReference)
	mustDo(t, err)
	wanted := sets.New[string]()
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile(monitoringFolder + file)
		mustDo(t, err)
		found := monitoredMetric.FindAllString(string(content), -1)
		if len(found) < 5 {
			t.Fatalf("%s names the metrics %v only", file, found)
		}
		wanted.Insert(found...)
	}
	for name := range wanted.Intersection(eventual) {
		if !strings.Contains(string(reference), "| `"+name+"` |") {
			t.Errorf("%s is monitored, and not in %s", name, metricsReference)
		}
	}
	migrateSecrets(t)
	eventually(t, "all monitored metrics are shown", func(ctx context.Context) error {
		samples, _, err := scraped(ctx)
		if missing := wanted.Difference(eventual).Difference(samples); err == nil && missing.Len() > 0 {
			err = fmt.Errorf("not shown: %v", sets.List(missing))
		}
		return err
	})
	if never := eventual.Difference(wanted); never.Len() > 0 {
		t.Errorf("not monitored at all: %v", sets.List(never))
	}
}

// migrateSecrets has the server do a migration.
func migrateSecrets(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(shared.admin)
	mustDo(t, err)
	if _, err := client.Resource(migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations")).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": migrationv1alpha1.SchemeGroupVersion.String(), "kind": "StorageVersionMigration",
		"metadata": map[string]any{"generateName": "metrics-"},
		"spec":     map[string]any{"resource": map[string]any{"version": "v1", "resource": "secrets"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestReferenceOfMetrics: the metrics of Concord that a running server shows are in the reference,
// and of that type.
func TestReferenceOfMetrics(t *testing.T) {
	reference, err := os.ReadFile(metricsReference)
	mustDo(t, err)
	_, types, err := scraped(t.Context())
	mustDo(t, err)
	own := 0
	for name, kind := range types {
		if !strings.HasPrefix(name, "concord_") && !strings.HasPrefix(name, "storage_migrator_") {
			continue
		}
		own++
		if !strings.Contains(string(reference), fmt.Sprintf("| `%s` | %s |", name, kind)) {
			t.Errorf("%s (%s) is not in %s", name, kind, metricsReference)
		}
	}
	if own < 8 {
		t.Errorf("only %d metrics of Concord's own are shown", own)
	}
}
