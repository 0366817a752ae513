package server

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// upstreamGate starts upstream's own storage version machinery, which Concord's replaces.
const upstreamGate = "StorageVersionAPI"

// featureComponents are the components whose gates --feature-gates sets. A name that
// several know is the first one's.
var featureComponents = []string{concordComponent, kubeComponent}

// FeatureRow is one feature at one choice of versions and gates, as operators see it.
type FeatureRow struct {
	Component string       `json:"component"`
	Feature   string       `json:"feature"`
	Stage     compat.Stage `json:"stage"`
	Enabled   bool         `json:"enabled"`
	Reason    string       `json:"reason"`
}

// Features computes which features a server with these options has on, without starting
// anything and without touching the process's gates (KEP-4330, "Changes to Feature
// Gates"). Rows are by component and name. Versions must be complete.
func (o *Options) Features() ([]FeatureRow, error) {
	known, settings, err := o.gateSettings()
	if err != nil {
		return nil, err
	}
	versions := compat.Options{Binary: o.versions.binary, Emulation: o.versions.emulation, MinCompatibility: o.versions.minCompatibility}
	rows := []FeatureRow{}
	for _, component := range featureComponents {
		plan, err := compat.PlanFeatures(known[component], settings[component], versions)
		if err != nil {
			return nil, err
		}
		for _, f := range plan {
			row := FeatureRow{Component: component, Feature: f.Name, Stage: f.Stage, Enabled: f.Enabled, Reason: f.Reason}
			if component == kubeComponent && f.Name == upstreamGate {
				row.Reason = "always off, Concord's own replaces it"
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// gateSettings returns, by component, the features that there are and the settings of
// --feature-gates.
func (o *Options) gateSettings() (known map[string][]compat.Feature, settings map[string]map[string]bool, err error) {
	known = map[string][]compat.Feature{}
	for _, component := range featureComponents {
		if gate, ok := o.ServerRun.ComponentGlobalsRegistry.FeatureGateFor(component).(featuregate.MutableVersionedFeatureGate); ok {
			known[component] = featuresOf(gate)
		}
	}
	settings, err = settingsOf(o.FeatureGates, known)
	return known, settings, err
}

// settingsOf says which component each setting of --feature-gates is for. AllAlpha and
// AllBeta without a component are for all of them.
func settingsOf(gates []string, known map[string][]compat.Feature) (map[string]map[string]bool, error) {
	settings := map[string]map[string]bool{}
	for _, component := range featureComponents {
		settings[component] = map[string]bool{}
	}
	for _, gate := range gates {
		component, pair, named := strings.Cut(gate, ":")
		if !named {
			pair = gate
		} else if settings[component] == nil {
			return nil, fmt.Errorf("invalid value %q for flag --feature-gates: no component %s, allowed are %s", gate, component, strings.Join(featureComponents, " and "))
		}
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("invalid value %q for flag --feature-gates: allowed are %s=true and %s=false", gate, name, name)
		}
		if on && component == kubeComponent && name == upstreamGate {
			return nil, fmt.Errorf("invalid value %q for flag --feature-gates: upstream's gate stays off, as %s=true replaces what it does; allowed is false", gate, name)
		}
		switch all := name == compat.AllAlpha || name == compat.AllBeta; {
		case named:
			settings[component][name] = on
		case all:
			for _, component := range featureComponents {
				settings[component][name] = on
			}
		default:
			settings[owner(name, known)][name] = on
		}
	}
	settings[kubeComponent][upstreamGate] = false
	return settings, nil
}

// owner is the component whose feature a name is; of one that nobody knows, the last.
func owner(name string, known map[string][]compat.Feature) string {
	for _, component := range featureComponents {
		if slices.ContainsFunc(known[component], func(f compat.Feature) bool { return f.Name == name }) {
			return component
		}
	}
	return featureComponents[len(featureComponents)-1]
}

// featuresOf reads the histories that a gate keeps.
func featuresOf(gate featuregate.MutableVersionedFeatureGate) []compat.Feature {
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

// FeatureTable prints features for people.
func FeatureTable(rows []FeatureRow) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tFEATURE\tSTAGE\tENABLED\tREASON")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Component, r.Feature, r.Stage, map[bool]string{true: "yes", false: "no"}[r.Enabled], r.Reason)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
