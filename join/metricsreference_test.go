package join

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics"

	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/etcdhealth"
	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/join/internal/turns"
	"github.com/concord-dev/concord/member/timing"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/workers"
)

// metricParts are the parts of a server that have metrics, with their text on the page.
var metricParts = []struct {
	title, who string
	of         []metrics.Registerable
	custom     metrics.StableCollector
}{
	{title: "What is stored, and migrations", who: "The elected server (the holder of the Lease `concord-controllers`) or process of `concord controllers`, and no other.", custom: tally.NewMetrics()},
	{title: "Migrations that this server does", who: "Every server, of the migrations that it has claimed.", of: claim.NewMetrics().Registerables()},
	{title: "Reports and agreement", who: "Every server.", of: timing.NewMetrics().Registerables()},
	{title: "Writes", who: "Every server.", of: slices.Concat([]metrics.Registerable{refused}, etcdhealth.Registerables(), filters.Registerables(), fence.Registerables())},
	{title: "Turns of requests", who: "Every server, while requests wait.", of: turns.Registerables()},
	{title: "Versions of servers", who: "The elected server, and no other.", of: skew.NewMetrics().Registerables()},
	{title: "Replicas of stock clusters", who: "The elected process of `concord controllers`, and no API server.", of: stock.Registerables()},
	{title: "Bugs", who: "Every server, once there is something to count.", of: workers.Registerables()},
}

const metricsHead = `<!-- Generated from the code by TestMetricsReference. DO NOT EDIT: run "make generate". -->
# Metrics

At ` + "`/metrics`" + ` of every server, beside kube-apiserver's own, for users that may get that path. ` + "`concord controllers`" + ` has
the first two parts and the last two at its ` + "`--port`" + `. ALPHA means what it means in Kubernetes: name, labels and meaning may change with a
release. A metric with labels is absent until there is something to show. Alerts and a dashboard made of them are in
[deploy/monitoring](../deploy/monitoring).

The label ` + "`resource`" + ` is the name with its group (` + "`configmaps`, `widgets.example.com`" + `), but for two kinds of metrics: those
that begin with ` + "`storage_migrator_`" + ` have the form of kube-storage-version-migrator (` + "`/v1, Resource=configmaps`" + `), and those with a
label ` + "`group`" + ` have the name alone.
`

// described matches prometheus' text of a metric's description.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "\[([A-Z]+)\] (.*)", unit: "[^"]*", constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}\}$`)

func metricType(m any) string {
	switch m.(type) {
	case *metrics.Counter, *metrics.CounterVec:
		return "counter"
	case *metrics.Gauge, *metrics.GaugeVec, *tally.Metrics:
		return "gauge"
	case *metrics.Histogram, *metrics.HistogramVec:
		return "histogram"
	}
	return "unknown"
}

// givenName is a gauge with the name that it has in kube-storage-version-migrator, since users look
// for it, although names with _total are for counters.
const givenName = "storage_migrator_core_migrator_remaining_objects_total"

// lint returns the breaches of Prometheus' conventions in a metric's name, help, unit and labels.
// The metric needs no value for that.
func lint(name, help, kind, labels string) ([]promlint.Problem, error) {
	family := &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{}}}
	if help != "" {
		family.Help = &help
	}
	switch kind {
	case "counter":
		family.Type = dto.MetricType_COUNTER.Enum()
	case "gauge":
		family.Type = dto.MetricType_GAUGE.Enum()
	case "histogram":
		family.Type = dto.MetricType_HISTOGRAM.Enum()
	}
	for label := range strings.SplitSeq(labels, ",") {
		if label != "" {
			family.Metric[0].Label = append(family.Metric[0].Label, &dto.LabelPair{Name: &label})
		}
	}
	return promlint.NewWithMetricFamilies([]*dto.MetricFamily{family}).Lint()
}

func TestLint(t *testing.T) {
	t.Parallel()
	for want, m := range map[string][4]string{
		"_total":    {"concord_writes", "Writes.", "counter", "resource"},
		"base unit": {"concord_wait_milliseconds", "Time waited.", "gauge", ""},
		"help":      {"concord_nothing_said", "", "gauge", ""},
		"camelCase": {"concord_camels", "Camels.", "gauge", "resourceName"},
		"":          {"concord_wait_seconds", "Time waited.", "histogram", "resource,reason"},
	} {
		problems, err := lint(m[0], m[1], m[2], m[3])
		if err != nil || (len(problems) == 0) != (want == "") || want != "" && !strings.Contains(problems[0].Text, want) {
			t.Errorf("%s: %v, error %v, want %q", m[0], problems, err, want)
		}
	}
}

// TestMetricsReference compares docs/metrics.md with the metrics of the code, which also have to
// follow Prometheus' conventions. With CONCORD_UPDATE=1 it writes that page.
func TestMetricsReference(t *testing.T) {
	var page strings.Builder
	page.WriteString(metricsHead)
	for _, part := range metricParts {
		rows := map[string]string{}
		describe := func(m interface {
			Describe(chan<- *prometheus.Desc)
		}) {
			descs := make(chan *prometheus.Desc, 100)
			m.Describe(descs)
			close(descs)
			for d := range descs {
				is := described.FindStringSubmatch(d.String())
				if is == nil {
					t.Fatalf("not understood: %s", d)
				}
				linted := is[1]
				if linted == givenName {
					linted = strings.TrimSuffix(linted, "_total")
				}
				if problems, err := lint(linted, is[3], metricType(m), is[4]); err != nil || len(problems) > 0 {
					t.Errorf("%s: %v, error %v", is[1], problems, err)
				}
				labels := strings.ReplaceAll(is[4], ",", ", ")
				rows[is[1]] = fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", is[1], metricType(m), labels, is[2], strings.ReplaceAll(is[3], `\"`, `"`))
			}
		}
		registry := metrics.NewKubeRegistry()
		if part.custom != nil {
			registry.CustomMustRegister(part.custom)
			describe(part.custom)
		}
		for _, m := range part.of {
			registry.MustRegister(m)
			describe(m)
		}
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n| metric | type | labels | stability | help |\n|---|---|---|---|---|\n", part.title, part.who)
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			page.WriteString(rows[name])
		}
	}
	golden := filepath.Join("..", "docs", "metrics.md")
	if os.Getenv("CONCORD_UPDATE") != "" {
		must(t, os.WriteFile(golden, []byte(page.String()), 0o600))
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != page.String() {
		t.Errorf("error %v; %s is not what the code says: run make generate", err, golden)
	}
	if strings.Contains(page.String(), "unknown |") {
		t.Error("a metric's type is not known")
	}
}
