package preflight

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
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

// TestParse: CustomResourceDefinitions are found in every form that kubectl applies.
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
		"a comment on a kind":  {text: strings.Replace(manifest("v1"), "kind: CustomResourceDefinition", "kind: CustomResourceDefinition # mine", 1), want: "widgets v1"},

		"a key twice in another document":   {text: "kind: Deployment\nmetadata: {name: a, name: b}\n---\n" + manifest("v1"), want: "widgets v1"},
		"a field twice in another document": {text: `{"kind":"ConfigMap","kind":"ConfigMap"}` + "\n---\n" + manifest("v1"), want: "widgets v1"},
		"a merge key in another document":   {text: "kind: ConfigMap\nbase: &base {a: 1}\ndata: {<<: *base, a: 2}\n---\n" + manifest("v1"), want: "widgets v1"},
		"another document without a kind":   {text: manifest("v1") + "---\na: b\n", err: "document 2: Object 'Kind' is missing"},

		"a field twice, without ---":          {text: manifest("v1", "v2") + manifest("v1"), want: "widgets v1"},
		"JSON, and then YAML":                 {text: widgets + "\n" + gears("v1"), want: "widgets v1,v2; gears v1"},
		"a version that nobody serves":        {text: strings.Replace(manifest("v1"), "/v1", "/v1beta1", 1), err: "apiextensions.k8s.io/v1beta1, which no release serves any more"},
		"a version that nobody serves, below": {text: list("List", strings.Replace(other, "/v1", "/v1beta1", 1)), err: "which no release serves any more"},
		"no group":                            {text: strings.Replace(manifest("v1"), "group: example.com", "", 1), err: `"widgets.example.com" has no spec.group`},
		"no plural":                           {text: strings.Replace(manifest("v1"), "plural: widgets, ", "", 1), err: `"widgets.example.com" has no spec.names.plural`},
		"no storage version":                  {text: strings.Replace(manifest("v1"), "storage: true", "storage: false", 1), err: `"widgets.example.com" has no storage version`},
		"no YAML, further down":               {text: manifest("v1") + "---\n# nothing\n---\nkind: {", err: "document 3: error converting YAML to JSON: yaml: line 1"},
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
