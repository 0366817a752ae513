package compat

import (
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// history reads the history of a feature gate, such as "1.26 alpha off, 1.27 beta on, 1.28 stable on locked, 1.35 beta on min=1.35".
func history(t testing.TB, s string) []Phase {
	t.Helper()
	var out []Phase
	for entry := range strings.SplitSeq(s, ", ") {
		f := strings.Fields(entry)
		p := Phase{Since: version.MustParseMajorMinor(f[0]), Stage: Stage(f[1])}
		for _, word := range f[2:] {
			switch v, min := strings.CutPrefix(word, "min="); {
			case min:
				p.MinCompatibility = version.MustParseMajorMinor(v)
			case word == "on" || word == "off":
				p.Default = word == "on"
			case word == "locked":
				p.Locked = true
			default:
				t.Fatalf("history %q: unknown word %q", s, word)
			}
		}
		out = append(out, p)
	}
	return out
}

// gates reads "A=true,B=false" as --feature-gates does.
func gates(t testing.TB, s string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for name, value := range config(t, s) {
		b, err := strconv.ParseBool(value)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = b
	}
	return out
}

// planned returns the plan for one feature A, as text such as "beta on" and as a value.
func planned(t testing.TB, hist, set string, o Options) (string, FeaturePlan, error) {
	t.Helper()
	plan, err := PlanFeatures([]Feature{{Name: "A", History: history(t, hist)}}, gates(t, set), o)
	if err != nil {
		return "", FeaturePlan{}, err
	}
	if len(plan) != 1 {
		t.Fatalf("%d features planned", len(plan))
	}
	return string(plan[0].Stage) + map[bool]string{true: " on", false: " off"}[plan[0].Enabled], plan[0], nil
}

// The two tables of KEP-4330, "Feature Gate Lifecycles". Three cells of the second table contradict the history above it
// ("Beta: 1.26, Deprecated: 1.27, Removed: 1.31"); the test goes by the history. The cells are: the stage "beta" in 1.27 to 1.29,
// the stage "-" in 1.30, and "code may be removed" in 1.33, which is three releases after that "-"; by the history it is 1.34 (see
// TestRemovable). The KEP's "Removed" is a stage here; k8s.io/component-base has no such stage (see StageRemoved).
func TestFeatureLifecycleTables(t *testing.T) {
	const (
		promoted = "1.26 alpha off, 1.27 beta on, 1.28 stable on"
		removed  = "1.26 beta off, 1.27 deprecated off, 1.31 removed"
	)
	for _, c := range []struct{ history, release, want string }{
		{promoted, "1.25", "absent off"},
		{promoted, "1.26", "alpha off"},
		{promoted, "1.27", "beta on"},
		{promoted, "1.28", "stable on"},
		{promoted, "1.29", "stable on"},
		{promoted, "1.30", "stable on"},
		{promoted, "1.31", "stable on"},
		{removed, "1.25", "absent off"},
		{removed, "1.26", "beta off"},
		{removed, "1.27", "deprecated off"},
		{removed, "1.28", "deprecated off"},
		{removed, "1.29", "deprecated off"},
		{removed, "1.30", "deprecated off"},
		{removed, "1.31", "removed off"},
		{removed, "1.32", "removed off"},
		{removed, "1.33", "removed off"},
	} {
		// The binary of this release, and every binary that emulates it.
		for _, binary := range releases(version.MustParse(c.release), version.MustParse(c.release).AddMinor(supported)) {
			if got, _, err := planned(t, c.history, "", options(t, binary.String(), c.release, "")); err != nil || got != c.want {
				t.Errorf("%s: %s emulating %s: %s (%v), want %s", c.history, binary, c.release, got, err, c.want)
			}
		}
	}
}

// The examples of KEP-4330, "Changes to Feature Gates". featureB is default-off at Beta there.
func TestFeatureGateExamples(t *testing.T) {
	for _, c := range []struct{ history, release, minCompatibility, want string }{
		{"1.27 beta off, 1.28 stable on", "1.27", "", "beta off"},
		{"1.27 beta off, 1.28 stable on", "1.28", "", "stable on"},
		{"1.28 alpha off", "1.27", "", "absent off"},
		{"1.28 beta off", "1.28", "", "beta off"},
		{"1.26 alpha off, 1.28 deprecated on", "1.27", "", "alpha off"},
		{"1.26 alpha off, 1.28 deprecated on", "1.28", "", "deprecated on"},
		// "Features with compatibility implications": every phase needs min compatibility 1.28.
		{"1.28 alpha off min=1.28, 1.29 beta on min=1.28, 1.30 stable on min=1.28", "1.28", "1.27", "absent off"},
		{"1.28 alpha off min=1.28, 1.29 beta on min=1.28, 1.30 stable on min=1.28", "1.28", "1.28", "alpha off"},
		{"1.28 alpha off min=1.28, 1.29 beta on min=1.28, 1.30 stable on min=1.28", "1.29", "1.27", "absent off"},
		{"1.28 alpha off min=1.28, 1.29 beta on min=1.28, 1.30 stable on min=1.28", "1.29", "1.28", "beta on"},
		// A phase without min compatibility version takes that of the phase before it.
		{"1.28 beta off, 1.28 beta on min=1.28, 1.30 stable on", "1.30", "1.27", "beta off"},
		{"1.28 beta off, 1.28 beta on min=1.28, 1.30 stable on", "1.30", "1.28", "stable on"},
		// relaxValidationFeatureA: "set the feature version and the min compatibility version to the same thing".
		{"1.30 beta on min=1.30", "1.30", "1.29", "absent off"},
		{"1.30 beta on min=1.30", "1.30", "1.30", "beta on"},
		{"1.30 beta on min=1.30", "1.31", "1.30", "beta on"},
	} {
		if got, _, err := planned(t, c.history, "", options(t, c.release, "", c.minCompatibility)); err != nil || got != c.want {
			t.Errorf("%s at %s, min compatibility %q: %s (%v), want %s", c.history, c.release, c.minCompatibility, got, err, c.want)
		}
	}
}

// The feature rows of the transition grid of KEP-4330, Integration tests, with N = 1.37. "Beta feature graduated to GA" says of N that the
// "feature gate may not be set"; in the library a locked gate may be set to its own value, and a stable gate that is not locked to any
// value. The test goes by the library. For "Beta feature removed" the history ends with a removed phase here. In Kubernetes it ends with a
// deprecated phase that is locked, as long as a supported release has the feature, and then has no entry, so that the gate may not be set at
// all (the last two rows).
func TestTransitionGridFeatures(t *testing.T) {
	const (
		n1, n       = "1.36", "1.37"
		introduced  = "1.37 alpha off"
		toBeta      = "1.36 alpha off, 1.37 beta on"
		offToBeta   = "1.36 beta off, 1.37 beta on"
		toGA        = "1.36 beta on, 1.37 stable on locked"
		removed     = "1.35 beta on, 1.37 removed"
		deprecation = "1.35 beta on, 1.37 deprecated off locked"
	)
	for _, c := range []struct {
		transition, history, emulation, set string
		want                                string // or what the error contains after "!"
	}{
		{"Alpha feature introduced", introduced, n1, "", "absent off"},
		{"Alpha feature introduced", introduced, n1, "A=true", "!introduced in 1.37, after emulation version 1.36, allowed with the emulation versions 1.37"},
		{"Alpha feature introduced", introduced, n1, "A=false", "!introduced in 1.37"},
		{"Alpha feature introduced", introduced, n, "", "alpha off"},
		{"Alpha feature introduced", introduced, n, "A=true", "alpha on"},
		// "alpha features may not be used in conjunction with emulation version" also holds for N-1 in the next row: its "feature enabled
		// only when --feature-gates=<feature>=true" is true for a feature that was a beta and off by default.
		{"Alpha feature graduated to Beta", toBeta, n1, "", "alpha off"},
		{"Alpha feature graduated to Beta", toBeta, n1, "A=true", "!A is alpha at emulation version 1.36, and alpha features may not be used"},
		{"Alpha feature graduated to Beta", toBeta, n1, "AllAlpha=true", "!--feature-gates=AllAlpha=true: A is alpha at emulation version 1.36"},
		{"Alpha feature graduated to Beta", offToBeta, n1, "", "beta off"},
		{"Alpha feature graduated to Beta", offToBeta, n1, "A=true", "beta on"},
		{"Alpha feature graduated to Beta", toBeta, n, "", "beta on"},
		{"Alpha feature graduated to Beta", toBeta, n, "A=false", "beta off"},
		{"Beta feature graduated to GA", toGA, n1, "", "beta on"},
		{"Beta feature graduated to GA", toGA, n1, "A=false", "beta off"},
		{"Beta feature graduated to GA", toGA, n, "", "stable on"},
		{"Beta feature graduated to GA", toGA, n, "A=false", "!--feature-gates=A=false: stable since 1.37 and locked, allowed is A=true"},
		{"Beta feature graduated to GA", toGA, n, "A=true", "stable on"},
		{"Beta feature removed", removed, n1, "", "beta on"},
		{"Beta feature removed", removed, n1, "A=false", "beta off"},
		{"Beta feature removed", removed, n, "", "removed off"},
		{"Beta feature removed", removed, n, "A=false", "!removed in 1.37, allowed with the emulation versions 1.35, 1.36"},
		{"Beta feature removed", deprecation, n, "A=true", "!deprecated since 1.37 and locked, allowed is A=false"},
		{"Beta feature removed", "", n, "A=true", "!no release has this feature"},
	} {
		if c.history == "" {
			_, err := PlanFeatures(nil, gates(t, c.set), options(t, Binary, c.emulation, ""))
			wantError(t, err, c.want[1:])
			continue
		}
		got, _, err := planned(t, c.history, c.set, options(t, Binary, c.emulation, ""))
		if part, refused := strings.CutPrefix(c.want, "!"); refused {
			wantError(t, err, part)
		} else if err != nil || got != c.want {
			t.Errorf("%s, emulation %s, --feature-gates=%s: %s (%v), want %s", c.transition, c.emulation, c.set, got, err, c.want)
		}
	}
}

// The CEL rows of the same grid, on the real CEL environments, with the function of the lists library that N = 1.37 introduces. The grid's N
// is taken as the min compatibility version: "always pass in N-1 of the compatibility version [...] as the CEL compatibility version". The
// row "new CEL function", where "CEL function does not exist" at N-1, cannot be tested: this binary evaluates stored expressions at every
// version that it emulates. So only the row "introduced CEL function" is.
func TestTransitionGridCEL(t *testing.T) {
	const (
		n1, n      = "1.36", "1.37"
		introduced = "[1, 2].includes(2)"
		older      = "[1, 2].sum() == 3"
	)
	for _, c := range []struct {
		expression, minCompatibility string
		kind                         environment.Type
		want                         bool
	}{
		{introduced, n1, environment.StoredExpressions, true}, // "Resources already containing CEL expression can be evaluated"
		{introduced, n1, environment.NewExpressions, false},
		{introduced, n, environment.StoredExpressions, true},
		{introduced, n, environment.NewExpressions, true}, // "CEL expression can be written to resources and can be evaluated from storage"
		{older, n1, environment.NewExpressions, true},
		{older, n1, environment.StoredExpressions, true},
		{older, n, environment.NewExpressions, true},
	} {
		env, err := environment.MustBaseEnvSet(version.MustParseMajorMinor(c.minCompatibility)).Env(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, issues := env.Compile(c.expression); (issues.Err() == nil) != c.want {
			t.Errorf("%s in %s with min compatibility %s: %v, want it to compile: %t", c.expression, c.kind, c.minCompatibility, issues.Err(), c.want)
		}
	}
}

func TestFeatureReasons(t *testing.T) {
	for _, c := range []struct{ history, set, emulation, minCompatibility, want string }{
		{"1.35 alpha off", "", "1.37", "", "alpha since 1.35; off by default"},
		{"1.35 alpha off", "A=true", "1.37", "", "alpha since 1.35; on by --feature-gates=A=true"},
		{"1.35 alpha off", "", "1.36", "", "alpha since 1.35; off, alpha needs emulation version 1.37"},
		{"1.35 beta on", "AllBeta=false", "1.36", "", "beta since 1.35; off by --feature-gates=AllBeta=false"},
		{"1.35 beta on", "AllBeta=false,A=true", "1.36", "", "beta since 1.35; on by --feature-gates=A=true"},
		{"1.30 beta on, 1.35 stable on locked", "", "1.36", "", "stable since 1.35; always on"},
		{"1.30 beta off, 1.31 beta on", "", "1.36", "", "beta since 1.30; on by default"},
		{"1.37 beta on", "", "1.36", "", "introduced in 1.37, after emulation version 1.36"},
		{"1.36 beta on min=1.36", "", "1.37", "1.35", "introduced in 1.36 with min compatibility version 1.36, which is now 1.35"},
		{"1.36 beta off, 1.36 beta on min=1.36", "", "1.37", "1.35", "beta since 1.36; off by default, on by default with min compatibility version 1.36"},
		{"1.36 beta off, 1.36 beta on min=1.36", "", "1.37", "1.36", "beta since 1.36; on by default"},
		{"1.30 beta on, 1.36 deprecated off locked", "", "1.37", "", "deprecated since 1.36; always off"},
		{"1.30 beta on, 1.36 removed", "", "1.37", "", "removed in 1.36"},
		{"1.0 stable on, 1.36 deprecated off", "", "1.35", "", "stable; on by default"},
	} {
		_, plan, err := planned(t, c.history, c.set, options(t, Binary, c.emulation, c.minCompatibility))
		if err != nil || plan.Reason != c.want {
			t.Errorf("%s, --feature-gates=%s, emulation %s, min compatibility %s: %q (%v), want %q", c.history, c.set, c.emulation, c.minCompatibility, plan.Reason, err, c.want)
		}
	}
}

func TestFeatureErrors(t *testing.T) {
	features := []Feature{
		{Name: "WatchList", History: history(t, "1.27 alpha off, 1.32 beta on")},
		{Name: "Streaming", History: history(t, "1.30 beta off"), Needs: []string{"WatchList"}},
		{Name: "Later", History: history(t, "1.37 beta off, 1.37 beta on min=1.37"), Needs: []string{"Streaming"}},
	}
	for _, c := range []struct {
		set, emulation string
		want           []string
	}{
		{"WatchLists=true", "", []string{"--feature-gates=WatchLists=true", "no release has this feature", "allowed are WatchList and others"}},
		{"Nonsense=true", "", []string{"no release has this feature", "concord apis --features lists the allowed ones"}},
		{"Streaming=true,WatchList=false", "", []string{"Streaming is on and needs WatchList, which is off"}},
		{"Streaming=true,AllBeta=false", "", []string{"Streaming is on and needs WatchList, which is off"}},
		{"Later=true", "1.36", []string{"--feature-gates=Later=true", "introduced in 1.37, after emulation version 1.36", "allowed with the emulation versions 1.37"}},
		{"", "1.33", []string{"--emulation-version", "1.34, 1.35, 1.36, 1.37"}},
	} {
		_, err := PlanFeatures(features, gates(t, c.set), Options{Emulation: optional(c.emulation)})
		wantError(t, err, c.want...)
	}
}

func optional(v string) *version.Version {
	if v == "" {
		return nil
	}
	return version.MustParseMajorMinor(v)
}
