package ratchet

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// TestWithoutObservedGeneration: the new fields observedGeneration are cleared, unless the stored
// object has them already.
func TestWithoutObservedGeneration(t *testing.T) {
	status := func(own, condition int64) *apiextensions.CustomResourceDefinition {
		crd := definition(t, `properties: {}`)
		crd.Status.ObservedGeneration = own
		crd.Status.Conditions = []apiextensions.CustomResourceDefinitionCondition{{Type: "Established"}, {Type: "Mine", ObservedGeneration: condition}}
		return crd
	}
	for _, tc := range []struct {
		name               string
		stored, sent, kept *apiextensions.CustomResourceDefinition
	}{
		{"new", status(0, 0), status(3, 4), status(0, 0)},
		{"in use", status(1, 0), status(3, 4), status(3, 4)},
		{"in use by a condition", status(0, 1), status(3, 4), status(3, 4)},
		{"no longer in use", status(1, 1), status(0, 0), status(0, 0)},
	} {
		if err := newWithoutObservedGeneration().Admit(t.Context(), attributes(tc.sent, tc.stored, "status"), nil); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if got, want := tc.sent.Status, tc.kept.Status; got.ObservedGeneration != want.ObservedGeneration || got.Conditions[1].ObservedGeneration != want.Conditions[1].ObservedGeneration {
			t.Errorf("%s: kept %d and %d, want %d and %d", tc.name, got.ObservedGeneration, got.Conditions[1].ObservedGeneration, want.ObservedGeneration, want.Conditions[1].ObservedGeneration)
		}
	}
}

// TestObservedGenerationGate: component-base enables the gate at the releases at which the KEP
// demands it: from the second release on that has the field.
func TestObservedGenerationGate(t *testing.T) {
	introduced := utilversion.MajorMinor(1, 35)
	for _, emulation := range []string{"1.34", "1.35", "1.36", "1.37"} {
		gate := utilfeature.DefaultMutableFeatureGate.DeepCopyAndReset()
		version := utilversion.MustParseMajorMinor(emulation)
		if err := gate.SetEmulationVersionAndMinCompatibilityVersion(version, version); err != nil {
			t.Fatal(err)
		}
		previousKnows := version.SubtractMinor(1).AtLeast(introduced)
		if got := gate.Enabled(apiextensionsfeatures.CRDObservedGenerationTracking); got != previousKnows {
			t.Errorf("emulating %s: the field takes data: %v, but that the release before knows it: %v", emulation, got, previousKnows)
		}
	}
}
