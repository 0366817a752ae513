package verdict

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestLost: a warning names the fields that the API server would drop when it writes objects in the new storage
// version.
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
		"additional ones go":      {"{properties: {m: {additionalProperties: {type: string}}}}", "{properties: {m: {properties: {x: {}}}}}", false, "any field in .m"},
		"additional ones take it": {"{properties: {m: {properties: {x: {}}}}}", "{properties: {m: {additionalProperties: {}}}}", false, ""},
		"metadata":                {"{properties: {apiVersion: {}, kind: {}, metadata: {properties: {name: {}}}}}", "{type: object}", false, ""},
		"seven":                   {"{properties: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}}}", "{type: object}", false, ".a .b .c .d .e and 2 more fields"},
	} {
		present := &Definition{Versions: []string{"v1"}, Storage: "v1", StoredVersions: []string{"v1"}, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(test.stored)}}
		wanted := &Definition{Versions: []string{"v1", "v2"}, Storage: "v2", Converted: test.converted, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(test.stored), "v2": schema(test.wanted)}}
		var got []string
		r := OfDefinitions([]Change{{Wanted: wanted, Present: present}})
		for _, w := range r.Warnings {
			path := strings.TrimPrefix(w.About, "objects may have ")
			if end := strings.IndexAny(path, ",:"); end >= 0 {
				path = path[:end]
			}
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

// TestLostUnknown: the same for fields that are in no schema; they are stored if a schema, or the definition,
// preserves unknown fields.
func TestLostUnknown(t *testing.T) {
	const strict = "{type: object, properties: {metadata: {type: object}, spec: {type: object, properties: {a: {type: object, properties: {x: {type: string}}}}}}}"
	const keeps = "type: object, x-kubernetes-preserve-unknown-fields: true"
	for name, test := range map[string]struct{ stored, wanted, want string }{
		"below":                       {"{properties: {spec: {" + keeps + "}}}", strict, "any field in .spec"},
		"below, with a named one":     {"{properties: {spec: {" + keeps + ", properties: {b: {type: string}}}}}", strict, "any field in .spec, .spec.b"},
		"at the root":                 {"{" + keeps + "}", strict, "any field"},
		"at the root, still":          {"{" + keeps + "}", "{" + keeps + "}", ""},
		"at the root, but for one":    {"{" + keeps + "}", "{" + keeps + ", properties: {metadata: {type: object}, spec: {type: object}}}", "any field in .spec"},
		"inside of a kept one":        {"{properties: {spec: {properties: {a: {properties: {x: {}, z: {}}}}}}}", "{properties: {spec: {" + keeps + ", properties: {a: {properties: {x: {}}}}}}}", ".spec.a.z"},
		"inside of a kept list":       {"{properties: {l: {items: {properties: {a: {properties: {x: {}, z: {}}}, b: {}}}}}}", "{properties: {l: {type: array, x-kubernetes-preserve-unknown-fields: true, items: {properties: {a: {properties: {x: {}}}}}}}}", ".l[].a.z"},
		"of items":                    {"{properties: {l: {x-kubernetes-preserve-unknown-fields: true}}}", "{properties: {l: {type: array, items: {properties: {x: {}}}}}}", "any field in .l[]"},
		"of additional ones":          {"{properties: {m: {" + keeps + "}}}", "{properties: {m: {additionalProperties: {properties: {x: {}}}}}}", "any field in .m.*"},
		"of additional ones, strings": {"{properties: {m: {" + keeps + "}}}", "{properties: {m: {additionalProperties: {type: string}}}}", ""},
		"a string":                    {"{properties: {s: {x-kubernetes-preserve-unknown-fields: true}}}", "{properties: {s: {type: string}}}", ""},
		"of an embedded object":       {"{properties: {o: {" + keeps + "}}}", "{properties: {o: {" + keeps + ", x-kubernetes-embedded-resource: true, properties: {metadata: {type: object}}}}}", ""},
		"metadata":                    {"{properties: {metadata: {properties: {name: {}}}}}", "{properties: {metadata: {type: object}}}", ""},
	} {
		if got := strings.Join(lostBy(t, test.stored, test.wanted, false, false), ", "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := lostBy(t, strict, strict, true, false); strings.Join(got, ", ") != "any field" {
		t.Errorf("with preserveUnknownFields, which goes: %q", got)
	}
	if got := lostBy(t, strict, strict, true, true); len(got) > 0 {
		t.Errorf("with preserveUnknownFields, which stays: %q", got)
	}
}

// lostBy returns the fields that objects stored with one schema lose with another one, as the warnings name them. kept
// and keeps are spec.preserveUnknownFields before and after.
func lostBy(t *testing.T, stored, wanted string, kept, keeps bool) (got []string) {
	t.Helper()
	schema := func(text string) *apiextensionsv1.JSONSchemaProps {
		s := &apiextensionsv1.JSONSchemaProps{}
		if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	was := &Definition{Versions: []string{"v1"}, Storage: "v1", StoredVersions: []string{"v1"}, KeepsUnknown: kept, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(stored)}}
	is := &Definition{Versions: []string{"v1"}, Storage: "v1", KeepsUnknown: keeps, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{"v1": schema(wanted)}}
	for _, w := range OfDefinitions([]Change{{Wanted: is, Present: was}}).Warnings {
		path := strings.TrimPrefix(w.About, "objects may have ")
		got = append(got, path[:strings.IndexAny(path, ",:")])
	}
	return got
}
