package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// prometheusRule reads the alerts, and refuses fields that the Prometheus operator's definition
// does not have.
func prometheusRule(t *testing.T) monitoringv1.PrometheusRule {
	t.Helper()
	var rule monitoringv1.PrometheusRule
	strictly(t, "monitoring/rules.yaml", &rule)
	return rule
}

func strictly(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func alerts(t *testing.T) map[string]monitoringv1.Rule {
	t.Helper()
	found := map[string]monitoringv1.Rule{}
	for _, group := range prometheusRule(t).Spec.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule
		}
	}
	return found
}

// TestRules has promtool check the alerts, and try them on the synthetic series of
// monitoring/tests.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	groups, err := yaml.Marshal(prometheusRule(t).Spec)
	must(t, err)
	tests, err := os.ReadFile("monitoring/tests/rules.yaml")
	must(t, err)
	for name, content := range map[string][]byte{"groups.yaml": groups, "tests.yaml": tests} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	promtool := filepath.Join(dir, "promtool")
	for _, command := range [][]string{
		// Without service discovery, which is most of Prometheus' code.
		{"go", "build", "-tags", "remove_all_sd", "-o", promtool, "github.com/prometheus/prometheus/cmd/promtool"},
		{promtool, "check", "rules", "--lint-fatal", filepath.Join(dir, "groups.yaml")},
		{promtool, "test", "rules", filepath.Join(dir, "tests.yaml")},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil { //nolint:gosec // fixed commands
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	for alert := range alerts(t) {
		if !regexp.MustCompile(`exp_labels: .*`).Match(tests) || !strings.Contains(string(tests), "alertname: "+alert+"\n    exp_alerts:\n    - ") {
			t.Errorf("%s is never seen to fire", alert)
		}
		if !strings.Contains(string(tests), "alertname: "+alert+", exp_alerts: []") {
			t.Errorf("%s is never seen not to fire", alert)
		}
	}
}

const runbooks = "https://github.com/concord-dev/concord/blob/main/docs/runbooks/"

// TestRunbooks: every alert has a page that says what it means and what to do, and there is no page
// without an alert.
func TestRunbooks(t *testing.T) {
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	must(t, err)
	of := alerts(t)
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if _, alerted := of[name]; !alerted && name != "README" {
			t.Errorf("%s: there is no such alert", page)
		}
	}
	for name, rule := range of {
		if rule.Annotations["runbook_url"] != runbooks+name+".md" {
			t.Errorf("%s: runbook_url is %q", name, rule.Annotations["runbook_url"])
		}
		page, err := os.ReadFile("../docs/runbooks/" + name + ".md")
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range []string{"# " + name + "\n", "\n## What it means\n", "\n## What suffers\n", "\n## What to look at\n", "\n## What to do\n"} {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s has no %q", name, strings.TrimSpace(part))
			}
		}
	}
}

// metricName matches the names of metrics in the same files as server/generic does, which looks for
// each on a running server (TestMonitoredMetrics).
var metricName = regexp.MustCompile(`\b(concord|storage_migrator|apiserver)_[a-z_]+[a-z]\b`)

// TestExpressions: all expressions of alerts and dashboard are valid, and metricName matches every
// metric in them.
func TestExpressions(t *testing.T) {
	expressions := map[string]string{}
	for name, rule := range alerts(t) {
		expressions[name] = rule.Expr.String()
	}
	var dashboard struct {
		Panels []struct {
			ID          int
			Title, Type string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr, RefID string }
		}
	}
	content, err := os.ReadFile("monitoring/dashboard.json")
	must(t, err)
	must(t, json.Unmarshal(content, &dashboard))
	places := map[[2]int]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			expressions[p.Title+" "+target.RefID] = target.Expr
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			place := [2]int{x, p.GridPos.Y}
			if x >= 24 || places[place] != "" {
				t.Errorf("panel %q lies over %q or beyond the page", p.Title, places[place])
			}
			places[place] = p.Title
		}
	}
	for _, name := range slices.Sorted(maps.Keys(expressions)) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(expressions[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok && metricName.FindString(selector.Name) != selector.Name {
				t.Errorf("%s: %q does not look like a metric to server/generic", name, selector.Name)
			}
			return nil
		})
	}
}

// TestMonitoring: kustomize and the chart render the same objects for monitoring.
func TestMonitoring(t *testing.T) {
	var monitor monitoringv1.PodMonitor
	strictly(t, "monitoring/podmonitor.yaml", &monitor)
	want := kustomize(t, "monitoring")
	all, without := objects(t, template(t, map[string]any{"monitoring": map[string]any{"enabled": true}})), objects(t, template(t, nil))
	got := map[string]object{}
	for key, o := range all {
		if without[key] != nil {
			continue
		}
		metadata, _ := o["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		delete(labels, "app.kubernetes.io/managed-by")
		got[key] = o
	}
	compare(t, "the chart", got, want)
}
