package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

func manifest(versions ...string) string {
	text := `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, kind: Widget}
  scope: Namespaced
  versions:
`
	for i, v := range versions {
		text += "  - name: " + v + "\n    served: true\n    storage: " + map[bool]string{true: "true", false: "false"}[i == len(versions)-1] + "\n"
	}
	return text
}

func TestParse(t *testing.T) {
	found, err := parse([]byte("# a comment\n---\n" + manifest("v1", "v2") + "---\napiVersion: v1\nkind: ConfigMap\n"))
	if err != nil || len(found) != 1 || found[0].Storage != "v2" || len(found[0].Versions) != 2 || found[0].Resource.String() != "widgets.example.com" {
		t.Errorf("found %+v, %v", found, err)
	}
	for text, want := range map[string]string{
		strings.Replace(manifest("v1"), "/v1", "/v1beta1", 1):                 "apiextensions.k8s.io/v1beta1, which no release serves any more",
		strings.Replace(manifest("v1"), "group: example.com", "", 1):          "names no group, plural or storage version",
		strings.Replace(manifest("v1"), "storage: true", "storage: false", 1): "names no group, plural or storage version",
		"kind: {": "error converting YAML to JSON",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of\n%s\nthe error is %v, want %q", text, err, want)
		}
	}
	if _, err := some("stdin", []byte("kind: ConfigMap\n")); err == nil || !strings.Contains(err.Error(), "stdin has no CustomResourceDefinition") {
		t.Errorf("without any: %v", err)
	}
}

// TestChart: the definitions that Helm would apply are found where they are plain, and it is said
// which ones have to be rendered.
func TestChart(t *testing.T) {
	for name, test := range map[string]struct {
		files string
		found int
		err   string
	}{
		"crds":                      {"-- Chart.yaml --\n-- crds/a.yaml --\n" + manifest("v1"), 1, ""},
		"of a subchart":             {"-- Chart.yaml --\n-- charts/sub/crds/a.yaml --\n" + manifest("v1"), 1, ""},
		"templates with directives": {"-- Chart.yaml --\n-- templates/a.yaml --\n{{- if .Values.crds.install }}\n" + manifest("v1") + "{{- end }}\n", 1, ""},
		"templates that compute":    {"-- Chart.yaml --\n-- templates/a.yaml --\n" + strings.Replace(manifest("v1"), "name: v1", `name: "{{ .Values.version }}"`, 1), 0, "helm template"},
		"templates that are none":   {"-- Chart.yaml --\n-- templates/a.yaml --\n" + strings.Replace(manifest("v1"), "group: example.com", "group: {{ .Values.group }}.x", 1), 0, "helm template"},
		"none":                      {"-- Chart.yaml --\n-- templates/a.yaml --\nkind: ConfigMap\n", 0, "has no CustomResourceDefinition"},
		"no chart":                  {"-- crds/a.yaml --\n" + manifest("v1"), 0, "is no directory of a Helm chart"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range txtar.Parse([]byte(test.files)).Files {
				file := filepath.Join(dir, f.Name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			found, err := chart(dir)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("found %v, %v; want %q", found, err, test.err)
				}
				return
			}
			if err != nil || len(found) != test.found {
				t.Errorf("found %v, %v", found, err)
			}
		})
	}
}

// TestTarget: both programs plan the same server, from Kubernetes' types or from the table.
func TestTarget(t *testing.T) {
	for _, o := range []options{{to: "1.38"}, {backTo: "1.35"}, {to: compat.Binary}, {emulation: "1.36"}} {
		o.Lifecycles = verdict.Lifecycles
		target, _, err := o.target()
		if err != nil || len(target.Resources()) < 50 {
			t.Errorf("%+v: %v", o.to+o.backTo+o.emulation, err)
		}
	}
}
