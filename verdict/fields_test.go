package verdict

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestLost: fields are named that the API server drops where it writes objects anew in the storage version.
func TestLost(t *testing.T) {
	const object = "{type: object, properties: {a: {type: string}, b: {type: object, properties: {c: {type: string}}}}}"
	schema := func(text string) *apiextensionsv1.JSONSchemaProps {
		s := &apiextensionsv1.JSONSchemaProps{}
		if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, test := range map[string]struct {
		stored, wanted string
		converted      bool
		want           string
	}{
		"the same":                {object, object, false, ""},
		"a field":                 {object, "{type: object, properties: {b: {type: object, properties: {c: {type: string}}}}}", false, ".a"},
		"a field further down":    {object, "{type: object, properties: {a: {type: string}, b: {type: object}}}", false, ".b.c"},
		"a webhook converts":      {object, "{type: object}", true, ""},
		"kept at the root":        {object, "{type: object, x-kubernetes-preserve-unknown-fields: true}", false, ""},
		"kept further down":       {object, "{type: object, properties: {a: {type: string}, b: {type: object, x-kubernetes-preserve-unknown-fields: true}}}", false, ""},
		"of items":                {"{properties: {l: {type: array, items: {properties: {x: {}, z: {}}}}}}", "{properties: {l: {type: array, items: {properties: {x: {}}}}}}", false, ".l[].z"},
		"of additional ones":      {"{properties: {m: {additionalProperties: {properties: {x: {}, z: {}}}}}}", "{properties: {m: {additionalProperties: {properties: {x: {}}}}}}", false, ".m.*.z"},
		"additional ones go":      {"{properties: {m: {additionalProperties: {type: string}}}}", "{properties: {m: {properties: {x: {}}}}}", false, ".m.*"},
		"additional ones take it": {"{properties: {m: {properties: {x: {}}}}}", "{properties: {m: {additionalProperties: {}}}}", false, ""},
		"metadata":                {"{properties: {apiVersion: {}, kind: {}, metadata: {properties: {name: {}}}}}", "{type: object}", false, ""},
		"seven":                   {"{properties: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}}}", "{type: object}", false, ".a .b .c .d .e and 2 more fields"},
	} {
		present := &Definition{Versions: []string{"v1"}, Storage: "v1", StoredVersions: []string{"v1"}, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(test.stored)}}
		wanted := &Definition{Versions: []string{"v1", "v2"}, Storage: "v2", Converted: test.converted, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(test.stored), "v2": schema(test.wanted)}}
		var got []string
		r := OfDefinitions([]Change{{Wanted: wanted, Present: present}})
		for _, w := range r.Warnings {
			path, _, _ := strings.Cut(strings.TrimPrefix(w.About, "objects may have "), ",")
			got = append(got, path)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if told := strings.Contains(r.Text(false), "Fields that are lost:"); told != (test.want != "") {
			t.Errorf("%s: it says\n%s", name, r.Text(false))
		}
	}
}
