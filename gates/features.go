package gates

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
)

// The settings that stand for all features of one stage.
const (
	allAlpha featuregate.Feature = "AllAlpha"
	allBeta  featuregate.Feature = "AllBeta"
)

// known returns the features of the registry's components, AllAlpha and AllBeta among them.
func known(registry basecompatibility.ComponentGlobalsRegistry) map[string]map[featuregate.Feature]featuregate.VersionedSpecs {
	all := map[string]map[featuregate.Feature]featuregate.VersionedSpecs{}
	for _, component := range Components {
		if gate, ok := registry.FeatureGateFor(component).(featuregate.MutableVersionedFeatureGate); ok {
			all[component] = gate.GetAllVersioned()
		}
	}
	return all
}

// Row is one feature as operators see it.
type Row struct {
	Component string `json:"component"`
	Feature   string `json:"feature"`
	// Stage is absent, alpha, beta, stable or deprecated.
	Stage   string `json:"stage"`
	Enabled bool   `json:"enabled"`
	Reason  string `json:"reason"`
}

// Features returns which features are on, and why, once the registry's Set has made its gates out of the flags. Rows are by component and name.
func (f *Flags) Features() []Row {
	rows := []Row{}
	for _, component := range Components {
		gate := f.registry.FeatureGateFor(component).(featuregate.MutableVersionedFeatureGate) // Adapt found it
		specs := gate.GetAll()
		for _, name := range slices.Sorted(maps.Keys(f.known[component])) {
			if name == allAlpha || name == allBeta {
				continue
			}
			row := Row{Component: component, Feature: string(name), Stage: "absent", Enabled: gate.Enabled(name), Reason: "default"}
			spec, there := specs[name]
			if there {
				row.Stage = cmp.Or(strings.ToLower(string(spec.PreRelease)), "stable")
			}
			switch why := refused[name]; {
			case why != "" && component == Kube:
				row.Reason = "always off, as " + why
			case !there:
				row.Reason = fmt.Sprintf("not at emulation version %s", gate.EmulationVersion())
			case spec.LockToDefault:
				row.Reason = "locked"
			case gate.ExplicitlySet(name) || row.Enabled != spec.Default: // by AllAlpha or AllBeta
				row.Reason = "set"
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// Table prints features for people.
func Table(rows []Row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tFEATURE\tSTAGE\tENABLED\tREASON")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Component, r.Feature, r.Stage, map[bool]string{true: "yes", false: "no"}[r.Enabled], r.Reason)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
