// Package deploy holds the manifests of concord controllers, and tests that Helm and kustomize
// render the same objects from them. The tests of server/kube apply these objects to API servers.
package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	yamlv3 "go.yaml.in/yaml/v3"
)

const namespace = "concord-system"

// object is a manifest; its key is its kind, namespace and name.
type object map[string]any

func (o object) key() string {
	metadata, _ := o["metadata"].(map[string]any)
	kind, _ := o["kind"].(string)
	namespace, _ := metadata["namespace"].(string)
	name, _ := metadata["name"].(string)
	return kind + " " + namespace + "/" + name
}

// objects reads manifests and returns their objects by key.
func objects(t *testing.T, manifests []byte) map[string]object {
	t.Helper()
	found := map[string]object{}
	for documents := yamlv3.NewDecoder(bytes.NewReader(manifests)); ; {
		var node yamlv3.Node
		if err := documents.Decode(&node); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, manifests)
		}
		text, err := yamlv3.Marshal(&node)
		must(t, err)
		var o object
		must(t, yaml.Unmarshal(text, &o))
		if len(o) == 0 {
			continue
		}
		if _, twice := found[o.key()]; twice {
			t.Errorf("%s is there twice", o.key())
		}
		found[o.key()] = o
	}
}

// kustomize renders a folder with kustomize.
func kustomize(t *testing.T, folder string) map[string]object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	must(t, err)
	manifests, err := resources.AsYaml()
	must(t, err)
	return objects(t, manifests)
}

// template renders the chart with Helm, and returns all its manifests.
func template(t *testing.T, values map[string]any) []byte {
	t.Helper()
	chart, err := loader.Load("chart")
	must(t, err)
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	render, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "concord", Namespace: namespace, IsInstall: true}, capabilities)
	must(t, err)
	files, err := engine.Render(chart, render)
	must(t, err)
	var manifests []string
	for _, crd := range chart.CRDObjects() {
		manifests = append(manifests, string(crd.File.Data))
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.TrimSpace(files[name]) != "" && !strings.HasSuffix(name, "NOTES.txt") {
			manifests = append(manifests, strings.TrimLeft(files[name], "\n"))
		}
	}
	return []byte(strings.Join(manifests, "\n---\n"))
}

// TestRenderings: the chart with its default values has the objects of kustomize's base, except for
// the namespace, which Helm makes, and Helm's label; and so with guards.
func TestRenderings(t *testing.T) {
	for _, test := range []struct {
		folder, installed string
		values            map[string]any
	}{
		{"controllers/base", "install/controllers.yaml", nil},
		{"controllers/guarded", "install/controllers-and-guards.yaml", map[string]any{"guards": map[string]any{"enabled": true}}},
	} {
		want := kustomize(t, test.folder)
		installed, err := os.ReadFile(test.installed)
		must(t, err)
		compare(t, test.installed, objects(t, installed), want)
		delete(want, "Namespace /"+namespace)
		got := objects(t, template(t, test.values))
		for key, o := range got {
			metadata, _ := o["metadata"].(map[string]any)
			labels, _ := metadata["labels"].(map[string]any)
			if kind := o["kind"]; kind != "CustomResourceDefinition" && labels["app.kubernetes.io/managed-by"] != "Helm" {
				t.Errorf("%s does not say that Helm manages it", key)
			}
			delete(labels, "app.kubernetes.io/managed-by")
		}
		compare(t, "the chart with "+test.folder, got, want)
	}
}

func compare(t *testing.T, what string, got, want map[string]object) {
	t.Helper()
	for key := range got {
		if want[key] == nil {
			t.Errorf("%s: %s is too much", what, key)
		}
	}
	for key, o := range want {
		switch {
		case got[key] == nil:
			t.Errorf("%s: %s is missing", what, key)
		case !reflect.DeepEqual(got[key], o):
			t.Errorf("%s: %s differs (- want, + is):\n%s", what, key, cmp.Diff(o, got[key]))
		}
	}
}

// allValues sets each value of the chart to something else than its default.
var allValues = map[string]any{
	"image":               map[string]any{"repository": "registry.example.com/concord", "digest": "sha256:" + strings.Repeat("0123456789abcdef", 4), "pullPolicy": "IfNotPresent"},
	"imagePullSecrets":    []any{map[string]any{"name": "registry"}},
	"replicas":            3,
	"maxObjectsPerSecond": 0,
	"pruneAfter":          "1h30m",
	"extraArgs":           []any{"--v=2"},
	"guards":              map[string]any{"enabled": true, "alsoAllow": []any{"system:serviceaccount:capi-system:capi-manager"}},
	"networkPolicy":       map[string]any{"metricsNamespace": "observability", "apiServerPorts": []any{443, 8443}},
	"nodeSelector":        map[string]any{"node-role.kubernetes.io/control-plane": ""},
	"tolerations":         []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}},
	"affinity":            map[string]any{"nodeAffinity": map[string]any{}},
	"priorityClassName":   "system-cluster-critical",
	"podAnnotations":      map[string]any{"example.com/team": "platform"},
}

// TestChartValues compares what the chart renders with allValues to a golden file, which TestDeploy
// of server/kube applies. With CONCORD_UPDATE=1 it writes that file.
func TestChartValues(t *testing.T) {
	rendered := template(t, allValues)
	golden := filepath.Join("chart", "testdata", "all-values.yaml")
	if os.Getenv("CONCORD_UPDATE") != "" {
		must(t, os.WriteFile(golden, rendered, 0o600))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	compare(t, "the chart", objects(t, rendered), objects(t, want))
	var values map[string]any
	defaults, err := os.ReadFile("chart/values.yaml")
	must(t, err)
	must(t, yaml.Unmarshal(defaults, &values))
	for name := range values {
		if _, tried := allValues[name]; !tried && name != "resources" && name != "goMemoryLimit" && name != "monitoring" {
			t.Errorf("value %s is not tried", name)
		}
	}
}

// TestChartRefuses: the chart's schema refuses values that are misspelt, or that could change the
// expression of a policy.
func TestChartRefuses(t *testing.T) {
	chart, err := loader.Load("chart")
	must(t, err)
	for name, values := range map[string]map[string]any{
		"a misspelt value":         {"guard": map[string]any{"enabled": true}},
		"a quote in a user's name": {"guards": map[string]any{"alsoAllow": []any{"x' || true || 'y"}}},
		"a digest of another kind": {"image": map[string]any{"digest": "md5:0"}},
		"a duration without unit":  {"pruneAfter": "10"},
		"a rate below zero":        {"maxObjectsPerSecond": -1},
	} {
		if _, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Namespace: namespace}, nil); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
