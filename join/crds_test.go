package join

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Versions that are converted by name only may have schemas, and so defaults, of their own.
func TestOneSchema(t *testing.T) {
	schema := func(field string) *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{field: {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}},
		}}
	}
	for name, test := range map[string]struct {
		schemas []*apiextensionsv1.CustomResourceValidation
		want    bool
	}{
		"one version":       {[]*apiextensionsv1.CustomResourceValidation{schema("a")}, true},
		"the same":          {[]*apiextensionsv1.CustomResourceValidation{schema("a"), schema("a"), schema("a")}, true},
		"another default":   {[]*apiextensionsv1.CustomResourceValidation{schema("a"), schema("a"), schema("b")}, false},
		"one without any":   {[]*apiextensionsv1.CustomResourceValidation{schema("a"), nil}, false},
		"none":              {[]*apiextensionsv1.CustomResourceValidation{nil, nil}, true},
		"no version at all": {nil, true},
	} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		for _, s := range test.schemas {
			crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Schema: s})
		}
		if got := oneSchema(crd); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
