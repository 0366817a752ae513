package compat

import (
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

// Rule names a rule that the declared histories of feature gates must keep (KEP-4330, "Changes to Feature Gates").
type Rule string

const (
	// AppendOnly: a phase that was recorded stays as it was, a new one comes after it and is recorded too.
	AppendOnly Rule = "append-only"
	// Maturing: nothing goes back in maturity. Deprecated comes after everything but removed, which is the end.
	Maturing Rule = "maturing"
	// InRange: nothing is removed while a release that the binary can emulate has it.
	InRange Rule = "in-range"
)

// Breach is a violation of a rule by a change of a feature's history.
type Breach struct {
	Feature string
	Rule    Rule
	Detail  string
}

// String names the feature and the rule, in one line.
func (b Breach) String() string {
	return fmt.Sprintf("feature %s breaks the rule %s: %s", b.Feature, b.Rule, b.Detail)
}

// CheckHistories compares the histories that a binary declares with the recorded ones, and returns the breaches of
// rules, sorted by feature. Phases that a release before the binary had must not be added or taken back. A feature may
// leave the code when no release in range can distinguish its absence from its presence (Removable); its record stays.
func CheckHistories(recorded, declared map[string][]Phase, binary *version.Version) []Breach {
	names := slices.Sorted(maps.Keys(recorded))
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		if _, ok := recorded[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var breaches []Breach
	for _, name := range names {
		was, is := recorded[name], declared[name]
		if _, ok := declared[name]; !ok {
			if !Removable(was, binary) {
				breaches = append(breaches, Breach{name, InRange, fmt.Sprintf(
					"it is gone, but %s can still emulate releases that have it as %s", binary, strings.Join(stages(was, binary), ", "))})
			}
			continue
		}
		breaches = append(breaches, appended(name, was, is, binary)...)
		breaches = append(breaches, maturing(name, is)...)
	}
	return breaches
}

// appended checks that is begins with was, and that the rest is news.
func appended(name string, was, is []Phase, binary *version.Version) (breaches []Breach) {
	for i, old := range was {
		switch {
		case i >= len(is):
			return append(breaches, Breach{name, AppendOnly, fmt.Sprintf("%q was recorded and is gone: put it back", old)})
		case is[i].String() != old.String():
			return append(breaches, Breach{name, AppendOnly, fmt.Sprintf("%q was recorded and is now %q: put it back and add a phase after it", old, is[i])})
		}
	}
	for _, fresh := range is[len(was):] {
		detail := fmt.Sprintf("%q is not recorded: add it to the table", fresh)
		if fresh.Since.LessThan(binary) && len(was) > 0 {
			detail = fmt.Sprintf("%q would change what %s and later releases had: a new phase begins with %s or later", fresh, fresh.Since, binary)
		}
		breaches = append(breaches, Breach{name, AppendOnly, detail})
	}
	return breaches
}

// maturing checks one history in itself.
func maturing(name string, is []Phase) (breaches []Breach) {
	order := []Stage{StageAbsent, StageAlpha, StageBeta, StageStable, StageDeprecated, StageRemoved}
	for i := 1; i < len(is); i++ {
		before, after := is[i-1], is[i]
		switch {
		case slices.Index(order, after.Stage) < slices.Index(order, before.Stage):
			breaches = append(breaches, Breach{name, Maturing, fmt.Sprintf("%s goes back to %s in %s", before.Stage, after.Stage, after.Since)})
		case after.Since.LessThan(before.Since):
			breaches = append(breaches, Breach{name, Maturing, fmt.Sprintf("%q comes after %q", after, before)})
		case before.Locked && !after.Locked && after.Stage != StageRemoved:
			breaches = append(breaches, Breach{name, Maturing, fmt.Sprintf("it is unlocked again in %s", after.Since)})
		}
	}
	return breaches
}

// Removable says whether a feature's gate may leave the code of the binary: every release in range has it locked or stable for good, has
// removed it, or knew it at most as alpha, which is not emulated (KEP-4330, "Feature Gate Lifecycles").
func Removable(history []Phase, binary *version.Version) bool {
	return len(stages(history, binary)) == 0
}

// stages lists the stages of the feature in releases in range where it could still be set: "beta in 1.34".
func stages(history []Phase, binary *version.Version) (set []string) {
	for _, release := range AllowedEmulation(binary) {
		held := Phase{Stage: StageAbsent}
		for _, p := range history { // no phase needs a later min compatibility version than its own release
			if !p.Since.GreaterThan(release) {
				held = p
			}
		}
		switch held.Stage {
		case StageBeta, StageDeprecated:
			if !held.Locked {
				set = append(set, fmt.Sprintf("%s in %s", held.Stage, release))
			}
		}
	}
	return set
}

// String writes the phase as tables do: "1.36 beta default=true locked min-compatibility=1.36".
func (p Phase) String() string {
	s := fmt.Sprintf("%s %s default=%t", p.Since, p.Stage, p.Default)
	if p.Locked {
		s += " locked"
	}
	if p.MinCompatibility != nil {
		s += " min-compatibility=" + p.MinCompatibility.String()
	}
	return s
}

// ParsePhase reads what Phase.String writes.
func ParsePhase(s string) (Phase, error) {
	words := strings.Fields(s)
	if len(words) < 3 || !majorMinor.MatchString(words[0]) {
		return Phase{}, fmt.Errorf("phase %q: want <release> <stage> default=<true|false> [locked] [min-compatibility=<release>]", s)
	}
	p := Phase{Since: version.MustParseMajorMinor(words[0]), Stage: Stage(words[1])}
	switch p.Stage {
	case StageAbsent, StageAlpha, StageBeta, StageStable, StageDeprecated, StageRemoved:
	default:
		return Phase{}, fmt.Errorf("phase %q: no stage %q", s, words[1])
	}
	for i, word := range words[2:] {
		release, min := strings.CutPrefix(word, "min-compatibility=")
		switch {
		case i == 0 && (word == "default=true" || word == "default=false"):
			p.Default = word == "default=true"
		case i == 1 && word == "locked":
			p.Locked = true
		case i > 0 && min && majorMinor.MatchString(release):
			p.MinCompatibility = version.MustParseMajorMinor(release)
		default:
			return Phase{}, fmt.Errorf("phase %q: %q is not understood", s, word)
		}
	}
	return p, nil
}
