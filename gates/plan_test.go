package gates

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// TestFeaturesAgreeWithLibrary compares the plan with component-base's own result for
// every real gate of component kube, at every emulation and min
// compatibility version in range: by default, and with settings drawn at random.
func TestFeaturesAgreeWithLibrary(t *testing.T) {
	registered := utilfeature.DefaultMutableFeatureGate.DeepCopyAndReset()
	features := Histories(utilfeature.DefaultMutableFeatureGate)
	if len(features) != len(registered.GetAllVersioned())-len([]string{compat.AllAlpha, compat.AllBeta}) {
		t.Fatalf("%d of %d gates are read", len(features), len(registered.GetAllVersioned()))
	}
	pairs, refused, accepted := 0, 0, 0
	for _, e := range compat.AllowedEmulation(compat.BinaryVersion()) {
		for _, m := range compat.AllowedMinCompatibility(compat.BinaryVersion(), e) {
			pairs++
			o := compat.Options{Emulation: e, MinCompatibility: m}
			for seed := range uint64(100) {
				settings := map[string]bool{}
				if seed > 0 {
					settings = drawSettings(rand.New(rand.NewPCG(seed, 0)), features)
				}
				gate := registered.DeepCopyAndReset()
				must(t, gate.AddDependencies(utilfeature.DefaultMutableFeatureGate.Dependencies()))
				must(t, gate.SetEmulationVersionAndMinCompatibilityVersion(e, m))
				want := gate.SetFromMap(settings)
				plan, got := compat.PlanFeatures(features, settings, o)
				at := fmt.Sprintf("emulation %s, min compatibility %s, %v", e, m, settings)
				if got != nil && want == nil && strings.Contains(got.Error(), "alpha features may not be used") {
					// The library only warns (KEP-4330, "Non-Goals").
					if !slices.ContainsFunc(features, func(f compat.Feature) bool {
						return gate.Enabled(featuregate.Feature(f.Name)) && gate.GetAll()[featuregate.Feature(f.Name)].PreRelease == featuregate.Alpha
					}) {
						t.Errorf("%s: %v, but no alpha feature is on", at, got)
					}
					continue
				}
				if (got == nil) != (want == nil) {
					t.Errorf("%s: refused with %v, the library says %v", at, got, want)
				}
				if got != nil || want != nil {
					refused++
					continue
				}
				accepted++
				all := gate.GetAll()
				for _, f := range plan {
					if spec, there := all[featuregate.Feature(f.Name)]; f.Enabled != gate.Enabled(featuregate.Feature(f.Name)) ||
						there != (f.Stage != compat.StageAbsent) || there && stageOf(spec) != f.Stage {
						t.Errorf("%s: %s is %s, %t: %s; the library says %+v, %t", at, f.Name, f.Stage, f.Enabled, f.Reason, spec, gate.Enabled(featuregate.Feature(f.Name)))
					}
				}
			}
		}
	}
	if pairs != 10 || refused == 0 || accepted == 0 {
		t.Errorf("%d pairs of versions, %d choices refused and %d accepted: the comparison misses something", pairs, refused, accepted)
	}
	t.Logf("%d gates, %d pairs, %d choices accepted, %d refused", len(features), pairs, accepted, refused)
}

func stageOf(spec featuregate.FeatureSpec) compat.Stage {
	if spec.PreRelease == featuregate.GA {
		return compat.StageStable
	}
	return compat.Stage(strings.ToLower(string(spec.PreRelease)))
}

// drawSettings sets up to three gates, and sometimes a class.
func drawSettings(random *rand.Rand, features []compat.Feature) map[string]bool {
	settings := map[string]bool{}
	for range random.IntN(4) {
		settings[features[random.IntN(len(features))].Name] = random.IntN(2) == 0
	}
	for _, class := range []string{compat.AllAlpha, compat.AllBeta} {
		if random.IntN(4) == 0 {
			settings[class] = random.IntN(2) == 0
		}
	}
	return settings
}

// TestFeatureHistories: the gates of the features that keep stored objects readable exist, beta and
// on, at every release that can be emulated, so that these features do not depend on that.
func TestFeatureHistories(t *testing.T) {
	for _, release := range compat.AllowedEmulation(compat.BinaryVersion()) {
		own := New(release)
		specs := own.GetAll()
		for _, name := range []featuregate.Feature{StorageVersionAPI, CompatibilityVersions} {
			if spec, ok := specs[name]; !ok || spec.PreRelease != featuregate.Beta || spec.LockToDefault || !own.Enabled(name) {
				t.Errorf("%s at %s: %+v", name, release, spec)
			}
		}
	}
}

// TestCRDBoundedNameCost: the gate follows the KEP's rule of relaxed validation.
func TestCRDBoundedNameCost(t *testing.T) {
	for _, tc := range []struct {
		emulation, minCompatibility string
		on                          bool
	}{
		{"1.37", "1.37", true}, {"1.37", "1.36", false}, {"1.37", "1.34", false}, {"1.36", "1.36", false}, {"1.36", "1.35", false},
	} {
		gate := New(compat.BinaryVersion())
		must(t, gate.SetEmulationVersionAndMinCompatibilityVersion(version.MustParse(tc.emulation), version.MustParse(tc.minCompatibility)))
		if got := gate.Enabled(CRDBoundedNameCost); got != tc.on {
			t.Errorf("emulating %s, compatible with %s: %v, want %v", tc.emulation, tc.minCompatibility, got, tc.on)
		}
	}
}
