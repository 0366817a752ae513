package ratchet

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

// costly is a CEL rule whose estimated cost exceeds the budget, unless names are bounded: a name
// counts as 3 MiB otherwise.
const costly = `self.spec.words.all(w, !self.metadata.name.contains(w))`

// definition returns a CRD in the internal version, whose schema has this at its root.
func definition(t *testing.T, root string) *apiextensions.CustomResourceDefinition {
	t.Helper()
	text := `{metadata: {name: gadgets.example.com}, status: {storedVersions: [v1]}, spec: {group: example.com, scope: Cluster,
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {
  type: object, ` + root + `}}}]}}`
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(text), &v1); err != nil {
		t.Fatal(err)
	}
	apiextensionsapiserver.Scheme.Default(&v1)
	crd := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsapiserver.Scheme.Convert(&v1, crd, nil); err != nil {
		t.Fatal(err)
	}
	return crd
}

const words = `spec: {type: object, properties: {words: {type: array, maxItems: 10, items: {type: string, maxLength: 100}}}}`

func withRule(more, rule string) string {
	return `properties: {` + more + words + `}, x-kubernetes-validations: [{rule: "` + rule + `"}]`
}

// attributes returns the admission attributes of a request; a create has no old object.
func attributes(crd, old *apiextensions.CustomResourceDefinition, subresource string) admission.Attributes {
	gvr := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	kind := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	if old == nil {
		return admission.NewAttributesRecord(crd, nil, kind, "", crd.Name, gvr, subresource, admission.Create, nil, false, nil)
	}
	return admission.NewAttributesRecord(crd, old, kind, "", crd.Name, gvr, subresource, admission.Update, nil, false, nil)
}

func judge(t *testing.T, crd, old *apiextensions.CustomResourceDefinition, subresource string) error {
	t.Helper()
	return newStrictCRDCost().Validate(t.Context(), attributes(crd, old, subresource), nil)
}

// TestStrictCRDCost: a definition that only the library of 1.37 accepts is refused. The field, the
// message and the factor are those of the library of 1.36 (v0.36.6) for the same definitions.
func TestStrictCRDCost(t *testing.T) {
	embedded := `properties: {spec: {type: object, properties: {word: {type: string, maxLength: 1000}, inner: {type: object, x-kubernetes-embedded-resource: true, properties: {metadata: {type: object}}}},
  x-kubernetes-validations: [{rule: "!self.inner.metadata.name.contains(self.word)"}]}}`
	for _, tc := range []struct{ name, root, field string }{
		{"no rules", `properties: {` + words + `}`, ""},
		{"a cheap rule", withRule("", "self.metadata.name != 'x'"), ""},
		{"a rule that the name makes costly", withRule("", costly), "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule"},
		{"with a bound that was ignored", withRule("metadata: {type: object, properties: {name: {type: string, maxLength: 60}}}, ", costly), "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule"},
		{"with all declared", withRule("apiVersion: {type: string}, kind: {type: string}, metadata: {type: object, properties: {name: {type: string, maxLength: 60}, generateName: {type: string}}}, ", costly), ""},
		{"in an embedded object", embedded, "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			crd := definition(t, tc.root)
			before := crd.DeepCopy()
			if errs := validation.ValidateCustomResourceDefinition(t.Context(), crd); len(errs) > 0 {
				t.Fatalf("the library refuses it: %v", errs.ToAggregate())
			}
			err := judge(t, crd, nil, "")
			if tc.field == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.field+": Forbidden: estimated rule cost exceeds budget by factor of 12.6x") || !strings.Contains(err.Error(), "--min-compatibility-version") {
				t.Errorf("got %v, want it refused for its cost at %s", err, tc.field)
			}
			if !equality.Semantic.DeepEqual(before, crd) {
				t.Error("the definition was changed")
			}
		})
	}
}

// TestStrictCRDCostStored: a definition with a costly rule that is stored already can be updated;
// an update cannot add the rule.
func TestStrictCRDCostStored(t *testing.T) {
	stored := definition(t, withRule("", costly))
	relabelled := stored.DeepCopy()
	relabelled.Labels = map[string]string{"a": "b"}
	relabelled.Spec.Names.ShortNames = []string{"g"}
	if err := judge(t, relabelled, stored, ""); err != nil {
		t.Errorf("an update of something else: %v", err)
	}
	if err := judge(t, definition(t, withRule("", "self.metadata.name != 'x'")), stored, ""); err != nil {
		t.Errorf("an update to a cheap rule: %v", err)
	}
	cheap := definition(t, withRule("", "self.metadata.name != 'x'"))
	if err := judge(t, stored, cheap, ""); !apierrors.IsInvalid(err) {
		t.Errorf("an update from a cheap rule: %v, want it refused", err)
	}
	if err := judge(t, stored, cheap, "status"); err != nil {
		t.Errorf("a status update: %v", err)
	}
}
