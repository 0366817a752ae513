package gates

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	_ "k8s.io/kubernetes/pkg/features" // registers kube's gates

	"github.com/concord-dev/concord/compat"
)

// newRegistry returns a new registry with component kube, which has all of Kubernetes' gates, and component concord.
func newRegistry(t *testing.T) basecompatibility.ComponentGlobalsRegistry {
	t.Helper()
	registry := basecompatibility.NewComponentGlobalsRegistry()
	effective := basecompatibility.NewEffectiveVersionFromString(compat.Binary, "1.34", "1.34")
	gate := utilfeature.DefaultMutableFeatureGate.DeepCopyAndReset()
	must(t, gate.AddDependencies(utilfeature.DefaultMutableFeatureGate.Dependencies()))
	must(t, registry.Register(Kube, effective, gate))
	must(t, Register(registry))
	return registry
}

// parse handles the arguments as the command of a server does.
func parse(t *testing.T, registry basecompatibility.ComponentGlobalsRegistry, args ...string) error {
	t.Helper()
	set := pflag.NewFlagSet("server", pflag.ContinueOnError)
	registry.AddFlags(set)
	flags, err := Adapt(set, registry)
	must(t, err)
	if err := set.Parse(args); err != nil {
		return err
	}
	if err := registry.Set(); err != nil {
		return err
	}
	return flags.Check()
}

// TestFlags: a gate without component is Concord's if Concord has one of that name, and else kube's. Such names may stand beside names with a
// component. Kube's own gate StorageVersionAPI stays off.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args                         []string
		versionAPI, versions, theirs bool // theirs is kube's alpha gate APIServingWithRoutine
	}{
		{nil, true, true, false},
		{[]string{"--feature-gates=StorageVersionAPI=false"}, false, true, false},
		{[]string{"--feature-gates=concord:StorageVersionAPI=false,APIServingWithRoutine=true"}, false, true, true},
		{[]string{"--feature-gates=kube:APIServingWithRoutine=true,StorageVersionAPI=true"}, true, true, true},
		{[]string{"--feature-gates=APIServingWithRoutine=true", "--feature-gates=kube:APIServingWithRoutine=false"}, true, true, false},
		{[]string{"--feature-gates=kube:APIServingWithRoutine=true", "--feature-gates", "CompatibilityVersions=false"}, true, false, true},
		{[]string{"--feature-gates=concord:AllBeta=false"}, false, false, false},
		{[]string{"--feature-gates=kube:StorageVersionAPI=false"}, true, true, false},
		{[]string{"--emulation-version=1.34", "--feature-gates=StorageVersionAPI=false"}, false, true, false},
	} {
		registry := newRegistry(t)
		if err := parse(t, registry, c.args...); err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		own, kube := registry.FeatureGateFor(Concord), registry.FeatureGateFor(Kube)
		if own.Enabled(StorageVersionAPI) != c.versionAPI || own.Enabled(CompatibilityVersions) != c.versions || kube.Enabled("APIServingWithRoutine") != c.theirs {
			t.Errorf("%v: %t, %t, %t", c.args, own.Enabled(StorageVersionAPI), own.Enabled(CompatibilityVersions), kube.Enabled("APIServingWithRoutine"))
		}
		if kube.Enabled(StorageVersionAPI) {
			t.Errorf("%v: upstream's machinery is on", c.args)
		}
	}
}

// TestAllAlpha: with AllAlpha of kube, those of its gates stay off which may not be turned on one by one.
func TestAllAlpha(t *testing.T) {
	for _, args := range [][]string{
		{"--feature-gates=kube:AllAlpha=true,kube:AllBeta=true"},
		{"--feature-gates=AllAlpha=true", "--feature-gates=AllBeta=true"},
		{"--feature-gates=StorageVersionAPI=true", "--feature-gates=AllAlpha=true,AllBeta=true"},
	} {
		registry := newRegistry(t)
		if err := parse(t, registry, args...); err != nil {
			t.Errorf("%v: %v", args, err)
			continue
		}
		kube := registry.FeatureGateFor(Kube).(featuregate.MutableVersionedFeatureGate)
		for name, spec := range kube.GetAll() {
			if _, no := refused[name]; spec.PreRelease == featuregate.Alpha && name != "AllAlpha" && kube.Enabled(name) == no {
				t.Errorf("%v: %s: %t", args, name, kube.Enabled(name))
			}
		}
		if !registry.FeatureGateFor(Concord).Enabled(StorageVersionAPI) {
			t.Errorf("%v: Concord's own is off", args)
		}
	}
}

// TestVersions: component concord emulates the version of component kube, under both names of the flag.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		args               []string
		emulation, minimum string
	}{
		{nil, "1.37", "1.36"},
		{[]string{"--emulated-version=1.36"}, "1.36", "1.35"},
		{[]string{"--emulation-version=kube=1.35"}, "1.35", "1.34"},
		{[]string{"--emulation-version=1.34"}, "1.34", "1.34"},
		{[]string{"--min-compatibility-version=1.37"}, "1.37", "1.37"},
		{[]string{"--emulated-version=1.36", "--min-compatibility-version=kube=1.36"}, "1.36", "1.36"},
	} {
		registry := newRegistry(t)
		if err := parse(t, registry, c.args...); err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		for _, component := range Components {
			v := registry.EffectiveVersionFor(component)
			if v.EmulationVersion().String() != c.emulation || v.MinCompatibilityVersion().String() != c.minimum {
				t.Errorf("%v: %s emulates %s and is compatible with %s", c.args, component, v.EmulationVersion(), v.MinCompatibilityVersion())
			}
		}
	}
}

// TestRefusals: the error for a refused flag says in one line why, and what is allowed.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--feature-gates=kube:StorageVersionAPI=true"}, []string{"--feature-gates", "kube:StorageVersionAPI=true", "stays off", "allowed is false"}},
		{[]string{"--feature-gates=CBORServingAndStorage=true"}, []string{"CBORServingAndStorage=true", "stays off", "would write in JSON", "allowed is false"}},
		{[]string{"--feature-gates=kubelet:A=true"}, []string{"no component kubelet", "allowed are concord and kube"}},
		{[]string{"--feature-gates=StorageVersionAPI=maybe"}, []string{"StorageVersionAPI=maybe", "allowed are StorageVersionAPI=true and StorageVersionAPI=false"}},
		{[]string{"--feature-gates=NoSuchFeature=true"}, []string{"--feature-gates", "NoSuchFeature=true: there is no such feature"}},
		{[]string{"--feature-gates=concord:WatchList=true"}, []string{"concord:WatchList=true: there is no such feature"}},
		{[]string{"--feature-gates=CRDValidationRatcheting=false,DRAAdminAccess=false"}, []string{"cannot set feature gate CRDValidationRatcheting to false, feature is locked to true", "DRAAdminAccess"}},
		{[]string{"--emulation-version=1.36", "--feature-gates=EtcdRangeStream=true"}, []string{"cannot set feature gate EtcdRangeStream to true", "at emulated version 1.36"}},
		{[]string{"--emulation-version=1.36", "--feature-gates=APIServingWithRoutine=true"}, []string{"APIServingWithRoutine is alpha at emulation version 1.36", "allowed are beta and stable features"}},
		{[]string{"--emulated-version=1.36", "--feature-gates=AllAlpha=true"}, []string{"alpha features may not be used while it is below binary version 1.37"}},
		{[]string{"--emulation-version=1.36", "--emulated-version=1.35"}, []string{"duplicate version flag, kube=1.36 and kube=1.35"}},
		{[]string{"--emulated-version=1.35", "--emulation-version=1.36"}, []string{"duplicate version flag, kube=1.35 and kube=1.36"}},
		{[]string{"--emulated-version=1.30"}, []string{"--emulation-version", "allowed versions are 1.34, 1.35, 1.36, 1.37"}},
		{[]string{"--emulated-version=1.36", "--min-compatibility-version=1.37"}, []string{"--min-compatibility-version", "allowed versions are 1.34, 1.35, 1.36"}},
		{[]string{"--emulation-version=1.36", "--feature-gates=CompatibilityVersions=false"}, []string{"--emulation-version needs the feature gate CompatibilityVersions"}},
		{[]string{"--min-compatibility-version=1.36", "--feature-gates=CompatibilityVersions=false"}, []string{"--min-compatibility-version needs the feature gate"}},
	} {
		err := parse(t, newRegistry(t), c.args...)
		if err == nil {
			t.Errorf("%v: no error, want %q", c.args, c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", c.args, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: more than one line: %v", c.args, err)
		}
	}
}

// TestUpstreamGateElsewhere: Check refuses kube's gate StorageVersionAPI also if it was not turned on by the flag.
func TestUpstreamGateElsewhere(t *testing.T) {
	registry := newRegistry(t)
	set := pflag.NewFlagSet("server", pflag.ContinueOnError)
	registry.AddFlags(set)
	flags, err := Adapt(set, registry)
	must(t, err)
	must(t, flags.Check())
	must(t, registry.FeatureGateFor(Kube).(featuregate.MutableFeatureGate).Set("StorageVersionAPI=true"))
	if err := flags.Check(); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
}

// TestOrder: Register and Adapt return an error if they are called too early.
func TestOrder(t *testing.T) {
	registry := basecompatibility.NewComponentGlobalsRegistry()
	if err := Register(registry); err == nil {
		t.Error("registered without component kube")
	}
	must(t, registry.Register(Kube, basecompatibility.NewEffectiveVersionFromString(compat.Binary, "", ""), utilfeature.DefaultMutableFeatureGate.DeepCopyAndReset()))
	set := pflag.NewFlagSet("server", pflag.ContinueOnError)
	if _, err := Adapt(set, registry); err == nil {
		t.Error("adapted without flags")
	}
	registry.AddFlags(set)
	if _, err := Adapt(set, registry); err == nil {
		t.Error("adapted without component concord")
	}
	for range 2 { // the second time does nothing
		if err := Register(registry); err != nil {
			t.Error(err)
		}
	}
}

// TestKubernetesFlags: the flag set with the gates is adapted before all flag sets of Kubernetes' control plane are merged, as in the commands.
func TestKubernetesFlags(t *testing.T) {
	options := controlplaneoptions.NewOptions()
	registry := options.GenericServerRunOptions.ComponentGlobalsRegistry
	must(t, Register(registry))
	var sets cliflag.NamedFlagSets
	options.AddFlags(&sets)
	flags, err := Adapt(sets.FlagSet("generic"), registry)
	must(t, err)
	merged := pflag.NewFlagSet("server", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		merged.AddFlagSet(set)
	}
	must(t, merged.Parse([]string{"--emulation-version=1.36", "--feature-gates=CompatibilityVersions=false,WatchList=true"}))
	must(t, registry.Set())
	t.Cleanup(func() {
		registry.Reset()
		if err := utilfeature.DefaultMutableFeatureGate.ResetFeatureValueToDefault("WatchList"); err != nil {
			t.Error(err)
		}
	})
	if err := flags.Check(); err == nil || !strings.Contains(err.Error(), "--emulation-version needs the feature gate") {
		t.Errorf("%v", err)
	}
	if got := registry.EffectiveVersionFor(Concord).EmulationVersion().String(); got != "1.36" {
		t.Errorf("Concord emulates %s", got)
	}
	if usage := merged.Lookup("feature-gates").Usage; !strings.Contains(usage, "StorageVersionAPI") || !strings.Contains(usage, "kube:WatchList=true|false") {
		t.Errorf("usage: %s", usage)
	}
	if usage := merged.Lookup("runtime-config-emulation-forward-compatible").Usage; strings.Contains(usage, "fail to start") {
		t.Errorf("upstream's usage, which is not true here: %s", usage)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestFeatureHistories: Concord's own two gates are beta and on at every release that can be emulated: stored objects stay readable through them
// whatever release is emulated.
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

// TestCRDBoundedNameCost: the gate is on only if the min compatibility version is 1.37 (KEP-4330's rule for relaxed validation).
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
