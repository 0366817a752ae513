package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

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

func asJSON(t *testing.T, manifest string) string {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(manifest))
	must(t, err)
	return string(text)
}

// gears returns a manifest of another CustomResourceDefinition.
func gears(versions ...string) string {
	return strings.ReplaceAll(manifest(versions...), "widget", "gear")
}

// TestParse: CustomResourceDefinitions are found in every form that kubectl applies; a text of which
// kubectl would read only a part is refused.
func TestParse(t *testing.T) {
	list := func(kind string, items ...string) string {
		return `{"apiVersion":"v1","kind":"` + kind + `","items":[` + strings.Join(items, ",") + `]}`
	}
	widgets, other := asJSON(t, manifest("v1", "v2")), asJSON(t, gears("v1"))
	for name, test := range map[string]struct{ text, want, err string }{
		"documents":            {text: "# a comment\n---\n" + manifest("v1", "v2") + "---\napiVersion: v1\nkind: ConfigMap\n---\n# nothing\n", want: "widgets v1,v2"},
		"a list beside one":    {text: manifest("v1") + "---\n" + list("List", other), want: "widgets v1; gears v1"},
		"a list of lists":      {text: list("List", list("List", other), widgets), want: "gears v1; widgets v1,v2"},
		"a list of their kind": {text: strings.Replace(list("CustomResourceDefinitionList", strings.NewReplacer(`"apiVersion":"apiextensions.k8s.io/v1",`, "", `"kind":"CustomResourceDefinition",`, "").Replace(other)), `"v1"`, `"apiextensions.k8s.io/v1"`, 1), want: "gears v1"},
		"JSON, one by one":     {text: widgets + "\n" + other, want: "widgets v1,v2; gears v1"},
		"JSON of emoji":        {text: strings.Replace(other, `"scope"`, `"x":"\ud83d\ude00","scope"`, 1), want: "gears v1"},
		"twice the same":       {text: manifest("v1") + "---\n" + manifest("v1"), want: "widgets v1"},
		"a comment on a kind":  {text: strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", "kind: CustomResourceDefinition # mine", 1), want: "widgets v1"},

		"a key twice in another document":   {text: "kind: Deployment\nmetadata: {name: a, name: b}\n---\n" + manifest("v1"), want: "widgets v1"},
		"a field twice in another document": {text: `{"kind":"ConfigMap","kind":"ConfigMap"}` + "\n---\n" + manifest("v1"), want: "widgets v1"},
		"a merge key in another document":   {text: "kind: ConfigMap\nbase: &base {a: 1}\ndata: {<<: *base, a: 2}\n---\n" + manifest("v1"), want: "widgets v1"},
		"another document without a kind":   {text: "a: b\n---\n" + manifest("v1"), want: "widgets v1"},

		"files without a line between them":   {text: manifest("v1", "v2") + manifest("v1"), err: "already set in map (between documents, or files, there has to be a line ---)"},
		"JSON with a field twice":             {text: strings.Replace(other, `"kind"`, `"kind":"ConfigMap","kind"`, 1), err: `duplicate field "kind"`},
		"JSON, and then YAML":                 {text: widgets + "\n" + gears("v1"), err: "a document follows another one"},
		"flow style, one by one":              {text: "{kind: ConfigMap}\n{kind: CustomResourceDefinition}\n", err: "a document follows another one"},
		"the end of a document":               {text: "kind: ConfigMap\n...\n" + manifest("v1"), err: "a document follows another one"},
		"twice, with different versions":      {text: manifest("v1") + "---\n" + manifest("v1", "v2"), err: "widgets.example.com is there twice, with different versions"},
		"a version that nobody serves":        {text: strings.Replace(manifest("v1"), "/v1", "/v1beta1", 1), err: "apiextensions.k8s.io/v1beta1, which no release serves any more"},
		"a version that nobody serves, below": {text: list("List", strings.Replace(other, "/v1", "/v1beta1", 1)), err: "which no release serves any more"},
		"no group":                            {text: strings.Replace(manifest("v1"), "group: example.com", "", 1), err: `"widgets.example.com" has no spec.group`},
		"no plural":                           {text: strings.Replace(manifest("v1"), "plural: widgets, ", "", 1), err: `"widgets.example.com" has no spec.names.plural`},
		"no storage version":                  {text: strings.Replace(manifest("v1"), "storage: true", "storage: false", 1), err: `"widgets.example.com" has no storage version`},
		"no kind":                             {text: "a: CustomResourceDefinition\n", err: "document 1: it has no kind"},
		"no YAML, further down":               {text: manifest("v1") + "---\n# nothing\n---\nkind: {", err: "document 3: yaml: line 1"},
		"a key twice, further down":           {text: "kind: ConfigMap\nkind: ConfigMap\n---\n" + manifest("v1") + "kind: CustomResourceDefinition\n", err: "document 2: yaml: unmarshal errors: line"},
		"JSON with a field twice, below":      {text: other + "\n" + strings.Replace(widgets, `"kind"`, `"kind":"ConfigMap","kind"`, 1), err: "document 2: duplicate field"},
		"no YAML":                             {text: "kind: {", err: "yaml: line 1: did not find expected node content"},
		"none":                                {text: "kind: ConfigMap\n", err: "stdin has no CustomResourceDefinition"},
	} {
		found, err := some("stdin", []byte(test.text))
		var got []string
		for _, d := range found {
			got = append(got, d.Resource.Resource+" "+strings.Join(d.Versions, ","))
		}
		if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "\n")) || test.err == "" && err != nil {
			t.Errorf("%s: found %q, and the error is %v, want one line with %q", name, got, err, test.err)
		}
		if test.err == "" && strings.Join(got, "; ") != test.want {
			t.Errorf("%s: found %q, want %q", name, got, test.want)
		}
	}
}

// TestChart: the definitions of a Helm chart are found if they are plain YAML; for templates, the error
// says which files have to be rendered. Files that Helm does not apply are not judged.
func TestChart(t *testing.T) {
	const template, whole = "-- templates/a.yaml --\n", "-- Chart.yaml --\n"
	dropped := strings.Replace(manifest("v1", "v2"), "  - name: v1\n", "  {{- if .Values.old }}\n  - name: v1\n", 1)
	dropped = strings.Replace(dropped, "  - name: v2\n", "  {{- end }}\n  - name: v2\n", 1)
	flow := strings.ReplaceAll(asJSON(t, manifest("v1")), `"`, "")
	flow = strings.NewReplacer(":", ": ", ",", ", ").Replace(flow)
	for name, test := range map[string]struct {
		files string
		found int
		err   string
	}{
		"crds":                             {whole + "-- crds/a.yaml --\n" + manifest("v1"), 1, ""},
		"crds in a folder":                 {whole + "-- crds/x/a.yml --\n" + manifest("v1"), 1, ""},
		"crds in JSON":                     {whole + "-- crds/a.yaml --\n" + manifest("v1") + "-- crds/g.json --\n" + asJSON(t, gears("v1")) + "\n", 2, ""},
		"crds in capitals":                 {whole + "-- crds/G.YAML --\n" + manifest("v1"), 1, ""},
		"crds with a comment":              {whole + "-- crds/a.yaml --\n" + strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", "kind: CustomResourceDefinition # mine", 1), 1, ""},
		"crds in flow style":               {whole + "-- crds/a.yaml --\n" + flow + "\n", 1, ""},
		"crds in a list":                   {whole + "-- crds/a.yaml --\n" + `{"apiVersion":"v1","kind":"List","items":[` + asJSON(t, manifest("v1")) + "," + asJSON(t, gears("v1")) + "]}\n", 2, ""},
		"crds that Helm does not read":     {whole + "-- crds/a.yaml --\n" + manifest("v1") + "-- crds/README.md --\nkind: CustomResourceDefinition\n", 1, ""},
		"of a subchart":                    {whole + "-- charts/sub/crds/a.yaml --\n" + manifest("v1"), 1, ""},
		"of a subchart's subchart":         {whole + "-- charts/sub/charts/sub/templates/a.yaml --\n" + manifest("v1"), 1, ""},
		"of a packed subchart":             {whole + "-- crds/a.yaml --\n" + manifest("v1") + "-- charts/sub-0.1.0.tgz --\n", 0, "it is packed"},
		"of a subchart that is not there":  {"-- Chart.yaml --\ndependencies:\n- name: sub\n-- crds/a.yaml --\n" + manifest("v1"), 0, "it needs the chart sub, which helm dependency build brings"},
		"of a subchart that is there":      {"-- Chart.yaml --\ndependencies:\n- name: sub\n-- charts/sub/Chart.yaml --\n-- crds/a.yaml --\n" + manifest("v1"), 1, ""},
		"of a folder beside subcharts":     {whole + "-- crds/a.yaml --\n" + manifest("v1") + "-- charts/_sub/crds/a.yaml --\n" + gears("v1"), 1, ""},
		"templates with directives":        {whole + template + "{{- if .Values.crds.install }}\n" + manifest("v1") + "{{- end }}\n", 1, ""},
		"templates with labels":            {whole + template + strings.Replace(manifest("v1"), "spec:", "  {{- include \"labels\" . | nindent 2 }}\nspec:", 1), 1, ""},
		"templates of any name":            {whole + "-- templates/x.tpl --\n" + manifest("v1"), 1, ""},
		"templates that compute":           {whole + template + strings.Replace(manifest("v1"), "name: v1", `name: "{{ .Values.version }}"`, 1), 0, "directives inside a spec"},
		"templates that are none":          {whole + template + strings.Replace(manifest("v1"), "group: example.com", "group: {{ .Values.group }}.x", 1), 0, "directives inside a spec"},
		"templates with a computed kind":   {whole + template + strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", `kind: {{ "CustomResourceDefinition" }}`, 1), 0, "yaml"},
		"templates with a quoted kind":     {whole + template + strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", `kind: "{{ print "CustomResourceDefinition" }}"`, 1), 0, "yaml"},
		"templates of a kind in values":    {whole + template + "# CustomResourceDefinition or not\n" + strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", `kind: '{{ .Values.kind }}'`, 1), 0, "a kind is computed"},
		"templates that drop a version":    {whole + template + dropped, 0, "directives inside a spec"},
		"templates that drop in comments":  {whole + template + strings.NewReplacer("{{- if .Values.old }}", "# {{- if .Values.old }}", "{{- end }}", "# {{- end }}").Replace(dropped), 0, "directives inside a spec"},
		"templates that drop after a line": {whole + template + strings.NewReplacer("  versions:\n  {{- if .Values.old }}", "  versions: # {{- if .Values.old }}", "\n  {{- end }}", " # {{- end }}").Replace(dropped), 0, "directives inside a spec"},
		"templates that drop in strings":   {whole + template + strings.NewReplacer("  {{- if .Values.old }}\n", "", "  {{- end }}\n", "", "scope: Namespaced", `scope: "Namespaced{{ if .Values.old }}"`).Replace(dropped) + "  x: '{{ end }}'\n", 0, "directives inside a spec"},
		"templates beside others":          {whole + template + manifest("v1") + "---\nkind: Deployment\nspec:\n  {{- if .Values.x }}\n  image: '{{ .Values.image }}'\n  {{- end }}\n", 1, ""},
		"templates on one line":            {whole + template + "{{ if .Values.crds }}" + asJSON(t, manifest("v1")) + "{{ end }}\n", 0, "directives inside a spec"},
		"templates that choose":            {whole + template + "{{ if .Values.old }}\n" + manifest("v1") + "{{ else }}\n---\n" + manifest("v1", "v2") + "{{ end }}\n", 0, "twice, with different versions"},
		"templates with other files":       {whole + template + `{{ .Files.Get "crds.txt" }}` + "\n", 0, "it has other files rendered"},
		"templates that are included":      {whole + template + `{{ include "crds" . }}` + "\n-- templates/_crds.tpl --\n{{ define \"crds\" }}\n" + manifest("v1") + "{{ end }}\n", 0, "other templates may include it"},
		"templates that are not rendered":  {whole + "-- templates/_x.yaml --\n" + manifest("v1"), 0, "other templates may include it"},
		"templates that only name it":      {whole + "-- crds/a.yaml --\n" + manifest("v1") + template + "apiVersion: v1\nkind: ConfigMap\ndata: {about: a CustomResourceDefinition}\n-- templates/NOTES.txt --\nCustomResourceDefinition {{ .Values.x }}\n", 1, ""},
		"none":                             {whole + template + "kind: ConfigMap\n", 0, "has no CustomResourceDefinition"},
		"no chart":                         {"-- crds/a.yaml --\n" + manifest("v1"), 0, "is no directory of a Helm chart"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range txtar.Parse([]byte(test.files)).Files {
				file := filepath.Join(dir, f.Name)
				must(t, os.MkdirAll(filepath.Dir(file), 0o700))
				must(t, os.WriteFile(file, f.Data, 0o600))
			}
			wantChart(t, dir, test.found, test.err)
		})
	}
	t.Run("behind a link", func(t *testing.T) {
		dir, crds := t.TempDir(), t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "Chart.yaml"), nil, 0o600), os.WriteFile(filepath.Join(crds, "a.yaml"), []byte(manifest("v1")), 0o600),
			os.Symlink(crds, filepath.Join(dir, "crds"))); err != nil {
			t.Fatal(err)
		}
		wantChart(t, dir, 0, "it is a link to a folder")
		link := filepath.Join(t.TempDir(), "chart")
		if err := errors.Join(os.Remove(filepath.Join(dir, "crds")), os.Mkdir(filepath.Join(dir, "crds"), 0o700),
			os.Symlink(filepath.Join(crds, "a.yaml"), filepath.Join(dir, "crds", "a.yaml")), os.Symlink(dir, link)); err != nil {
			t.Fatal(err)
		}
		wantChart(t, link, 1, "")
		must(t, errors.Join(os.Symlink(crds, filepath.Join(dir, "docs")), os.Symlink("nowhere", filepath.Join(dir, "LICENSE"))))
		wantChart(t, dir, 1, "")
		must(t, os.Symlink("nowhere", filepath.Join(dir, "templates")))
		wantChart(t, dir, 0, "no such file")
	})
}

// wantChart expects so many definitions in a chart, or an error that says why not all are known, with the
// command to run instead.
func wantChart(t *testing.T, dir string, want int, text string) {
	t.Helper()
	found, err := (&options{Config: Config{Program: "kubectl concord"}}).definedBy(dir)
	switch {
	case text == "":
		if err != nil || len(found) != want {
			t.Errorf("found %v, %v", found, err)
		}
	case err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n"):
		t.Errorf("found %v, %v; want one line with %q", found, err, text)
	case strings.Contains(err.Error(), "cannot be judged") && !strings.HasSuffix(err.Error(), ": helm template --include-crds "+dir+" | kubectl concord preflight --crd -"):
		t.Errorf("no way out is told: %v", err)
	}
}

// TestTarget: each of the flags that name a release leads to a target with Kubernetes' resources.
func TestTarget(t *testing.T) {
	for _, o := range []options{{to: "1.38"}, {backTo: "1.35"}, {to: compat.Binary}, {emulation: "1.36"}} {
		o.Lifecycles = verdict.Lifecycles
		target, _, err := o.target()
		if err != nil || len(target.Resources()) < 50 {
			t.Errorf("%+v: %v", o.to+o.backTo+o.emulation, err)
		}
	}
}
