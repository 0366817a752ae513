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

// The flags that the registry's AddFlags adds, and the name that KEP-4330 has for one of them.
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

// Adapt takes over --feature-gates in a flag set to which the registry's AddFlags has added its flags, so that Concord's gates can be set by name
// alone and those that are refused cannot, and adds --emulation-version as another name of --emulated-version. Concord must be
// registered before. The flag set may be one of several that are merged later.
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
	if set.Lookup(emulationVersionFlag) == nil {
		alias := *emulated
		alias.Name, alias.Usage = emulationVersionFlag, "Alias of --"+emulatedVersionFlag+"."
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

// Check says what is wrong with the flags, once the registry's Set has made its versions and gates out of them: versions out of range,
// features that may not be on, version flags without the gate for them, and refused gates, whoever switched them on.
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
		return nil
	}
	for _, name := range []string{emulationVersionFlag, emulatedVersionFlag, minCompatibilityFlag, forwardFlag, runtimeConfigFlag} {
		if f.set.Changed(name) {
			return fmt.Errorf("--%s needs the feature gate %s, which is off: remove the flag, or set the gate to true", name, CompatibilityVersions)
		}
	}
	return nil
}
