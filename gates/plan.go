package gates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// Known are the features that there are, by component.
type Known map[string][]compat.Feature

// KnownTo reads the features of the registry's components.
func KnownTo(registry basecompatibility.ComponentGlobalsRegistry) Known {
	known := Known{}
	for _, component := range Components {
		if gate, ok := registry.FeatureGateFor(component).(featuregate.MutableVersionedFeatureGate); ok {
			known[component] = Histories(gate)
		}
	}
	return known
}

// owner returns the component that has a feature of this name; the last component for an unknown name.
func (k Known) owner(name string) string {
	for _, component := range Components {
		if k.has(component, name) {
			return component
		}
	}
	return Components[len(Components)-1]
}

func (k Known) has(component, name string) bool {
	return slices.ContainsFunc(k[component], func(f compat.Feature) bool { return f.Name == name })
}

// Row is one feature at one choice of versions and settings, as operators see it.
type Row struct {
	Component string       `json:"component"`
	Feature   string       `json:"feature"`
	Stage     compat.Stage `json:"stage"`
	Enabled   bool         `json:"enabled"`
	Reason    string       `json:"reason"`
}

// Plan computes which features are on, without touching any gate. Rows are by component and name. It fails as compat.PlanFeatures does, also
// where the library only warns: when an alpha feature is on under emulation.
func Plan(known Known, settings Settings, versions compat.Options) ([]Row, error) {
	rows := []Row{}
	for _, component := range Components {
		plan, err := compat.PlanFeatures(known[component], settings[component], versions)
		if err != nil {
			return nil, err
		}
		for _, f := range plan {
			row := Row{Component: component, Feature: f.Name, Stage: f.Stage, Enabled: f.Enabled, Reason: f.Reason}
			if why, no := refused[featuregate.Feature(f.Name)]; no && component == Kube {
				row.Reason = "always off, as " + why
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
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

// Histories reads the histories that a gate keeps.
func Histories(gate featuregate.MutableVersionedFeatureGate) []compat.Feature {
	stages := map[string]compat.Stage{
		string(featuregate.PreAlpha):   compat.StageAbsent,
		string(featuregate.Alpha):      compat.StageAlpha,
		string(featuregate.Beta):       compat.StageBeta,
		string(featuregate.GA):         compat.StageStable,
		string(featuregate.Deprecated): compat.StageDeprecated,
	}
	all, needs := gate.GetAllVersioned(), gate.Dependencies()
	var features []compat.Feature
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == compat.AllAlpha || name == compat.AllBeta {
			continue
		}
		f := compat.Feature{Name: string(name)}
		for _, spec := range all[name] {
			f.History = append(f.History, compat.Phase{
				Since: spec.Version, MinCompatibility: spec.MinCompatibilityVersion,
				Stage: stages[string(spec.PreRelease)], Default: spec.Default, Locked: spec.LockToDefault,
			})
		}
		for _, need := range needs[name] {
			f.Needs = append(f.Needs, string(need))
		}
		features = append(features, f)
	}
	return features
}
