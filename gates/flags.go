package gates

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/concord-dev/concord/compat"
)

// The flags that the registry's AddFlags adds, and KEP-4330's name for one of them.
const (
	gatesFlag            = "feature-gates"
	emulatedVersionFlag  = "emulated-version"
	emulationVersionFlag = "emulation-version"
	minCompatibilityFlag = "min-compatibility-version"
	forwardFlag          = "emulation-forward-compatible"
	runtimeConfigFlag    = "runtime-config-emulation-forward-compatible"
)

// Flags are the version and feature flags of a server whose flags are Kubernetes' own.
type Flags struct {
	set      *pflag.FlagSet
	registry basecompatibility.ComponentGlobalsRegistry
	known    Known
	settings Settings
}

// Adapt takes over --feature-gates in a flag set to which the registry's AddFlags has added its flags, so that
// Concord's gates can be set by name alone and refused gates cannot be set. It also adds --emulation-version as
// another name of --emulated-version. Concord must be registered before. The flag set may be one of several that are
// merged later.
func Adapt(set *pflag.FlagSet, registry basecompatibility.ComponentGlobalsRegistry) (*Flags, error) {
	gates, emulated := set.Lookup(gatesFlag), set.Lookup(emulatedVersionFlag)
	if gates == nil || emulated == nil {
		return nil, fmt.Errorf("the flags --%s and --%s are not there to be adapted", gatesFlag, emulatedVersionFlag)
	}
	f := &Flags{set: set, registry: registry, known: KnownTo(registry)}
	if f.known[Concord] == nil {
		return nil, fmt.Errorf("component %s is not registered", Concord)
	}
	f.settings, _ = Split(nil, f.known) // nothing is refused of nothing
	gates.Value = &gatesValue{Value: gates.Value, flags: f}
	gates.Usage = fmt.Sprintf("Concord's own features are %s; their names mean them also without a component.\n", names(f.known[Concord])) + gates.Usage
	emulated.Value = &versionValue{emulated.Value, func(v string) error {
		_, _, err := compat.ParseVersions(compat.BinaryVersion(), v, "")
		return err
	}}
	if oldest := set.Lookup(minCompatibilityFlag); oldest != nil {
		oldest.Value = &versionValue{oldest.Value, func(v string) error {
			_, _, err := compat.ParseVersions(compat.BinaryVersion(), "", v)
			return err
		}}
	}
	if set.Lookup(emulationVersionFlag) == nil {
		alias, given := *emulated, map[string]string{}
		alias.Name, alias.Usage = emulationVersionFlag, "Alias of --"+emulatedVersionFlag+"."
		alias.Value = &twinValue{emulated.Value, emulationVersionFlag, given}
		emulated.Value = &twinValue{emulated.Value, emulatedVersionFlag, given}
		set.AddFlag(&alias)
	}
	return f, nil
}

func names(features []compat.Feature) string {
	var all []string
	for _, f := range features {
		all = append(all, f.Name)
	}
	return strings.Join(all, ", ")
}

// checkForward refuses flags that only mean something under emulation, in the names of the flags and not of the library's fields.
func (f *Flags) checkForward() error {
	binary := compat.BinaryVersion()
	if Versions(f.registry).Emulation.LessThan(binary) {
		return nil
	}
	for _, name := range []string{forwardFlag, runtimeConfigFlag} {
		if flag := f.set.Lookup(name); flag != nil && flag.Value.String() == "true" {
			var older []string
			for _, v := range compat.AllowedEmulation(binary) {
				if v.LessThan(binary) {
					older = append(older, v.String())
				}
			}
			return fmt.Errorf("--%s needs an --emulation-version below the binary's %s: remove the flag, or emulate one of %s", name, binary, strings.Join(older, ", "))
		}
	}
	return nil
}

// versionValue is a flag of versions by component. It checks the versions of component kube at once, and an error
// lists the allowed ones.
type versionValue struct {
	pflag.Value
	check func(version string) error
}

// Set implements pflag.Value.
func (v *versionValue) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		component, version, named := strings.Cut(part, "=")
		if !named {
			component, version = Kube, part
		}
		if component != Kube {
			continue
		}
		if err := v.check(version); err != nil {
			return err
		}
	}
	return v.Value.Set(s)
}

// twinValue is a flag with a second name. Giving both with different values is refused, since it would not be clear
// which one is meant.
type twinValue struct {
	pflag.Value
	name string
	// given holds the value that each name was given; the names share it.
	given map[string]string
}

// Set implements pflag.Value.
func (v *twinValue) Set(s string) error {
	for other, value := range v.given {
		if other != v.name && value != s {
			return fmt.Errorf("--%s is %s: these are two names of one flag, give one of them", other, value)
		}
	}
	if err := v.Value.Set(s); err != nil {
		return err
	}
	v.given[v.name] = s
	return nil
}

// gatesValue names the component of every setting before the library's flag gets it: that one takes all without a component for kube's, and
// refuses a mixture.
type gatesValue struct {
	pflag.Value
	flags *Flags
}

// Set implements pflag.Value.
func (v *gatesValue) Set(s string) error {
	settings, err := Split([]string{s}, v.flags.known)
	if err != nil {
		return err
	}
	if err := v.Value.Set(settings.String()); err != nil {
		return err
	}
	v.flags.settings = v.flags.settings.with(settings)
	return nil
}

// Features returns which features are on with the flags as parsed, once the registry's Set has made its versions out of them.
func (f *Flags) Features() ([]Row, error) { return Plan(f.known, f.settings, Versions(f.registry)) }

// Set computes the registry's versions and gates from the parsed flags. Where it can, it reports errors as Check does.
func (f *Flags) Set() error {
	err := f.registry.Set() // versions first
	if wrong := f.Check(); wrong != nil {
		return wrong
	}
	return err
}

// Check returns an error if the flags are wrong, once the registry's Set has computed its versions and gates from
// them: versions out of range, features that may not be on, version flags without the gate for them, and refused
// gates, whoever switched them on.
func (f *Flags) Check() error {
	if _, err := f.Features(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if f.known.has(Kube, string(name)) && f.registry.FeatureGateFor(Kube).Enabled(name) {
			return fmt.Errorf("%s:%s is on: %w", Kube, name, refusal(name))
		}
	}
	if f.registry.FeatureGateFor(Concord).Enabled(CompatibilityVersions) {
		return f.checkForward()
	}
	for _, name := range []string{emulationVersionFlag, emulatedVersionFlag, minCompatibilityFlag, forwardFlag, runtimeConfigFlag} {
		if f.set.Changed(name) {
			return fmt.Errorf("--%s needs the feature gate %s, which is off: remove the flag, or set the gate to true", name, CompatibilityVersions)
		}
	}
	return nil
}
