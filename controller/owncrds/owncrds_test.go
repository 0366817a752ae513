package owncrds

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// gadgets returns a CustomResourceDefinition with a list of parts that have these fields.
func gadgets(text string, fields ...string) *apiextensionsv1.CustomResourceDefinition {
	parts := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, f := range fields {
		parts[f] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: text}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "gadgets.concord.dev"
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"parts": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: parts}}},
		}},
	}}}
	return crd
}

// TestNeverBack: an older definition is brought up to date; a definition of a newer build, which has more fields, is left
// as it is.
func TestNeverBack(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		have, ours *apiextensionsv1.CustomResourceDefinition
		written    bool
	}{
		"none":                         {nil, gadgets("ours", "a"), true},
		"one that lacks a field":       {gadgets("old", "a"), gadgets("ours", "a", "b"), true},
		"another text":                 {gadgets("old", "a"), gadgets("ours", "a"), true},
		"a newer one":                  {gadgets("new", "a", "b"), gadgets("ours", "a"), false},
		"one that lacks one, has more": {gadgets("other", "b", "c"), gadgets("ours", "a"), true},
	} {
		objects := fake.NewClientBuilder().WithScheme(scheme)
		if test.have != nil {
			objects = objects.WithObjects(test.have)
		}
		c := objects.Build()
		if err := Install(t.Context(), c, []*apiextensionsv1.CustomResourceDefinition{test.ours.DeepCopy()}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var now apiextensionsv1.CustomResourceDefinition
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(test.ours), &now); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if written := equality.Semantic.DeepEqual(now.Spec, test.ours.Spec); written != test.written {
			t.Errorf("%s: it is ours: %t", name, written)
		}
	}
}
