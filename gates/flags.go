package gates

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

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
	known    map[string]map[featuregate.Feature]featuregate.VersionedSpecs
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
	f := &Flags{set: set, registry: registry, known: known(registry)}
	for _, component := range Components {
		if f.known[component] == nil {
			return nil, fmt.Errorf("component %s is not registered", component)
		}
	}
	gates.Value = &gatesValue{Value: gates.Value, flags: f}
	gates.Usage = fmt.Sprintf("Concord's own features are %s; their names mean them also without a component.\n", names()) + gates.Usage
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
	if forward := set.Lookup(runtimeConfigFlag); forward != nil {
		forward.Usage = "Accepted, and changes nothing: an API version that --runtime-config names is served without it, even if it is newer than the emulated release. Can only be set to true if the emulation version is lower than the binary version."
	}
	if set.Lookup(emulationVersionFlag) == nil {
		alias := *emulated
		alias.Name, alias.Usage = emulationVersionFlag, "Alias of --"+emulatedVersionFlag+"."
		set.AddFlag(&alias)
	}
	return f, nil
}

// names lists Concord's own features.
func names() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(features)) {
		all = append(all, string(name))
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

// gatesValue names the component of every setting before the library's flag gets it: that one takes all without a component for kube's, and
// refuses a mixture. AllAlpha and AllBeta without a component are for all components. Some of kube's gates are never on, upstream's
// StorageVersionAPI among them: not by AllAlpha, and asking for one is ErrRefused.
type gatesValue struct {
	pflag.Value
	flags *Flags
}

// Set implements pflag.Value.
func (v *gatesValue) Set(s string) error {
	var all []string
	for value := range strings.SplitSeq(s, ",") {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		components, pair, err := v.flags.split(value)
		if err != nil {
			return err
		}
		for _, component := range components {
			all = append(all, component+":"+pair)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if v.flags.known[Kube][name] != nil {
			all = append(all, fmt.Sprintf("%s:%s=false", Kube, name))
		}
	}
	return v.Value.Set(strings.Join(all, ","))
}

// split says which components one setting is for, "Name=true" or "concord:Name=true". Errors name it and what is allowed.
func (f *Flags) split(value string) (components []string, pair string, err error) {
	component, pair, named := strings.Cut(value, ":")
	if !named {
		pair = value
	} else if !slices.Contains(Components, component) {
		return nil, "", fmt.Errorf("%s: no component %s, allowed are %s", value, component, strings.Join(Components, " and "))
	}
	word, state, _ := strings.Cut(pair, "=")
	on, err := strconv.ParseBool(state)
	if err != nil {
		return nil, "", fmt.Errorf("%s: allowed are %s=true and %s=false", value, word, word)
	}
	name := featuregate.Feature(word)
	if !named && (name == allAlpha || name == allBeta) {
		return Components, pair, nil
	}
	owner := slices.IndexFunc(Components, func(c string) bool { return f.known[c][name] != nil && (!named || c == component) })
	if owner < 0 {
		return nil, "", fmt.Errorf("%s: there is no such feature", value)
	}
	if _, no := refused[name]; no && on && Components[owner] == Kube {
		return nil, "", fmt.Errorf("%s: %w", value, refusal(name))
	}
	return []string{Components[owner]}, pair, nil
}

// Set computes the registry's versions and gates from the parsed flags, and checks them.
func (f *Flags) Set() error {
	if err := f.registry.Set(); err != nil {
		return err
	}
	return f.Check()
}

// Check returns an error if the flags are wrong, once the registry's Set has computed its versions and gates from
// them: versions out of range, alpha features under emulation, where the library only warns, version flags without the gate for them,
// and refused gates, whoever switched them on.
func (f *Flags) Check() error {
	binary, versions := compat.BinaryVersion(), Versions(f.registry)
	if err := compat.ValidateVersions(binary, versions.Emulation, versions.MinCompatibility); err != nil {
		return err
	}
	for _, row := range f.Features() {
		name := featuregate.Feature(row.Feature)
		if _, no := refused[name]; no && row.Enabled && row.Component == Kube {
			return fmt.Errorf("%s:%s is on: %w", Kube, name, refusal(name))
		}
		if row.Enabled && row.Stage == "alpha" && versions.Emulation.LessThan(binary) {
			return fmt.Errorf("--feature-gates: %s is alpha at emulation version %s, and alpha features may not be used while it is below binary version %s, allowed are beta and stable features",
				name, versions.Emulation, binary)
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
