package compat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Stage is how mature a feature is at one release (KEP-4330, "Feature Gate Lifecycles").
type Stage string

// The stages. A history starts anywhere and never goes back from stable to beta or from beta to alpha.
const (
	// StageAbsent: the release does not have the feature.
	StageAbsent     Stage = "absent"
	StageAlpha      Stage = "alpha"
	StageBeta       Stage = "beta"
	StageStable     Stage = "stable"
	StageDeprecated Stage = "deprecated"
	// StageRemoved: the release no longer has the feature. k8s.io/component-base has no such stage: there a feature ends by
	// leaving the registry, once no release in range has it.
	StageRemoved Stage = "removed"
)

// Phase is one entry of a feature's history.
//
// Invariant, within a history: Since never goes down; of two phases with one Since the later has a higher MinCompatibility.
type Phase struct {
	// Since is the first release the phase holds for.
	Since *version.Version
	// MinCompatibility is the lowest min compatibility version the phase holds for; nil: that of the phase before it.
	MinCompatibility *version.Version
	Stage            Stage
	// Default is whether the feature is on without being asked for, Locked that it cannot be set to anything else.
	Default, Locked bool
}

// Feature is a feature gate as a binary declares it.
type Feature struct {
	Name string
	// History is oldest first.
	History []Phase
	// Needs are the features that must be on while this one is.
	Needs []string
}

// The settings that stand for all features of one stage, as in Kubernetes.
const (
	AllAlpha = "AllAlpha"
	AllBeta  = "AllBeta"
)

// FeaturePlan says whether a feature is on and, to an operator, why.
type FeaturePlan struct {
	Name    string
	Stage   Stage
	Enabled bool
	Reason  string
}

// PlanFeatures computes which features are on for a component with these versions whose operator set these gates (KEP-4330,
// "Changes to Feature Gates"). Of o only the versions count. The result is sorted by name and leaves out nothing.
//
// It fails when the versions are out of range, and when a gate is set that no release knows, that the emulated one does not have,
// that is locked to the other value, that is alpha and on under emulation, or that needs another which is off.
// Errors are one line and say what is allowed.
func PlanFeatures(features []Feature, settings map[string]bool, o Options) ([]FeaturePlan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	byName := make(map[string]decided, len(features))
	for _, f := range features {
		byName[f.Name] = newDecided(f, settings, o)
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if name == AllAlpha || name == AllBeta {
			continue
		}
		p, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("--feature-gates=%s=%t: no release has this feature, %s", name, settings[name], similar(name, byName))
		}
		if err := p.settable(settings[name], o); err != nil {
			return nil, err
		}
	}
	plan := make([]FeaturePlan, 0, len(features))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p := byName[name]
		if err := p.allowed(byName, o); err != nil {
			return nil, err
		}
		plan = append(plan, FeaturePlan{Name: name, Stage: p.Stage, Enabled: p.enabled, Reason: p.reason(o)})
	}
	return plan, nil
}

// decided is a feature at one choice of versions and settings.
type decided struct {
	Feature
	Phase
	at      int // index of Phase in History; -1: none holds
	enabled bool
	by      string // the setting that decided, "Name=true"; "": the default
}

func newDecided(f Feature, settings map[string]bool, o Options) decided {
	p := decided{Feature: f, at: f.phase(o.Emulation, o.MinCompatibility), Phase: Phase{Stage: StageAbsent}}
	if p.at >= 0 {
		p.Phase = f.History[p.at]
	}
	p.enabled = p.Default
	for _, name := range []string{f.Name, map[Stage]string{StageAlpha: AllAlpha, StageBeta: AllBeta}[p.Stage]} {
		if value, ok := settings[name]; ok {
			p.enabled, p.by = value, fmt.Sprintf("%s=%t", name, value)
			break
		}
	}
	return p
}

// phase returns the index of the phase that holds: the last one whose versions are reached.
func (f Feature) phase(emulation, minCompatibility *version.Version) int {
	held := -1
	var needed *version.Version
	for i, p := range f.History {
		if p.MinCompatibility != nil {
			needed = p.MinCompatibility
		}
		if !p.Since.GreaterThan(emulation) && (needed == nil || !needed.GreaterThan(minCompatibility)) {
			held = i
		}
	}
	return held
}

// settable says whether --feature-gates may name the feature with this value.
func (p decided) settable(value bool, o Options) error {
	set := fmt.Sprintf("--feature-gates=%s=%t", p.Name, value)
	switch {
	case p.Stage == StageAbsent || p.Stage == StageRemoved:
		return fmt.Errorf("%s: %s, %s", set, p.age(o), p.home(o))
	case p.Locked && value != p.Default:
		return fmt.Errorf("%s: %s and locked, allowed is %s=%t", set, p.age(o), p.Name, p.Default)
	default:
		return nil
	}
}

// home says which versions have the feature.
func (p decided) home(o Options) string {
	var allowed []*version.Version
	for _, e := range AllowedEmulation(o.Binary) {
		for _, m := range AllowedMinCompatibility(o.Binary, e) {
			if i := p.phase(e, m); i >= 0 && p.History[i].present() && !contains(allowed, e) {
				allowed = append(allowed, e)
			}
		}
	}
	return "allowed with the emulation versions " + join(allowed)
}

func (p Phase) present() bool { return p.Stage != StageAbsent && p.Stage != StageRemoved }

// allowed checks the rules that depend on more than the feature's own setting.
func (p decided) allowed(byName map[string]decided, o Options) error {
	if !p.enabled {
		return nil
	}
	if p.Stage == StageAlpha && o.Emulation.LessThan(o.Binary) {
		return fmt.Errorf("--feature-gates=%s: %s is alpha at emulation version %s, and alpha features may not be used while it is below binary version %s, allowed are beta and stable features",
			cmp.Or(p.by, p.Name), p.Name, o.Emulation, o.Binary)
	}
	for _, name := range p.Needs {
		if need, ok := byName[name]; ok && !need.enabled {
			return fmt.Errorf("--feature-gates: %s is on and needs %s, which is off: allowed are both, or %s=false", p.Name, name, p.Name)
		}
	}
	return nil
}

// age is the feature's stage in the eyes of the emulated release: "beta since 1.36".
func (p decided) age(o Options) string {
	switch p.Stage {
	case StageRemoved:
		return "removed in " + p.Since.String()
	case StageAbsent:
		for _, later := range p.History {
			if later.present() && later.Since.GreaterThan(o.Emulation) {
				return fmt.Sprintf("introduced in %s, after emulation version %s", later.Since, o.Emulation)
			}
			if later.present() && later.MinCompatibility != nil {
				return fmt.Sprintf("introduced in %s with min compatibility version %s, which is now %s", later.Since, later.MinCompatibility, o.MinCompatibility)
			}
		}
		return "no release in range has it"
	}
	first := p.at
	for first > 0 && p.History[first-1].Stage == p.Stage {
		first--
	}
	s := string(p.Stage)
	// Features that were there before their history was kept start at 0.0 or 1.0.
	if since := p.History[first].Since; since.Major() > 0 && since.Minor() > 0 {
		s += " since " + since.String()
	}
	return s
}

func (p decided) reason(o Options) string {
	age := p.age(o)
	if !p.present() {
		return age
	}
	onOff := map[bool]string{true: "on", false: "off"}
	switch {
	case p.Locked && p.enabled == p.Default:
		age += "; always " + onOff[p.enabled]
	case p.by != "":
		age += fmt.Sprintf("; %s by --feature-gates=%s", onOff[p.enabled], p.by)
	case p.Stage == StageAlpha && o.Emulation.LessThan(o.Binary):
		age += fmt.Sprintf("; off, alpha needs emulation version %s", o.Binary)
	default:
		age += fmt.Sprintf("; %s by default", onOff[p.enabled])
	}
	if i := p.phase(o.Emulation, o.Emulation); i > p.at {
		next := p.History[i]
		age += fmt.Sprintf(", %s by default with min compatibility version %s", onOff[next.Default], next.MinCompatibility)
	}
	return age
}

// similar names the features whose names are nearest to one that is unknown.
func similar(name string, byName map[string]decided) string {
	const most, far = 3, 4
	near := slices.DeleteFunc(slices.Sorted(maps.Keys(byName)), func(known string) bool {
		return distance(strings.ToLower(name), strings.ToLower(known)) > far
	})
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
	if len(near) == 0 {
		return "concord apis --features lists the allowed ones"
	}
	return "allowed are " + strings.Join(near[:min(most, len(near))], ", ") + " and others that concord apis --features lists"
}

// distance is how many letters to add, drop or change to make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, change)
		}
	}
	return row[len(b)]
}
