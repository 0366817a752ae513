package server

import (
	"errors"
	"fmt"
	"strings"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// Concord's own feature gates. They are a component of their own in the libraries'
// registry: upstream has a gate StorageVersionAPI too, an alpha one.
const (
	// StorageVersionAPI is section 3 of the design: the StorageVersion API, gate, fence,
	// collector, trigger and rewriting. Without it the server has an identity Lease that
	// says so, and nobody agrees while it lives (DESIGN 3.8).
	StorageVersionAPI featuregate.Feature = "StorageVersionAPI"
	// CompatibilityVersions lets the server stand for an older release (KEP-4330). Without
	// it the version flags are refused and /version does not tell what is emulated.
	CompatibilityVersions featuregate.Feature = "CompatibilityVersions"
)

// The components whose gates --feature-gates sets. One that is not named is Concord for
// Concord's own gates, and kube for all others.
const (
	concordComponent = "concord"
	kubeComponent    = basecompatibility.DefaultKubeComponent
)

// features is the history of Concord's own gates: rows are only ever appended (KEP-4330,
// "Feature Gate"). Both are beta and on from the first release that any Concord emulates:
// what keeps stored objects readable must not depend on the release that is emulated.
var features = map[featuregate.Feature]featuregate.VersionedSpecs{
	StorageVersionAPI:     {{Version: version.MajorMinor(1, 34), Default: true, PreRelease: featuregate.Beta}},
	CompatibilityVersions: {{Version: version.MajorMinor(1, 34), Default: true, PreRelease: featuregate.Beta}},
}

// registerGates makes Concord a component of the registry, unless it is one.
func registerGates(registry basecompatibility.ComponentGlobalsRegistry) {
	binary := compat.BinaryVersion()
	oldest := compat.AllowedEmulation(binary)[0]
	registry.ComponentGlobalsOrRegister(concordComponent, basecompatibility.NewEffectiveVersion(binary, false, oldest, oldest), newGates(binary))
}

func newGates(emulation *version.Version) featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewVersionedFeatureGate(emulation)
	utilruntime.Must(gates.AddVersioned(features))
	return gates
}

func gatesUsage() string {
	return fmt.Sprintf("Comma-separated Feature=true|false pairs; %s: before a name means Concord's own features, %s: the libraries'. Concord's own are %s. concord apis --features lists all.",
		concordComponent, kubeComponent, strings.Join(newGates(compat.BinaryVersion()).KnownFeatures(), ", "))
}

// setGates sets the gates of every component to what they are at the emulated release,
// and returns Concord's own. All settings are checked before: in the process's gates a
// refused one would stick.
func (o *Options) setGates() (featuregate.FeatureGate, error) {
	if _, err := o.Features(); err != nil {
		return nil, err
	}
	_, settings, err := o.gateSettings()
	if err != nil {
		return nil, err
	}
	registry := o.ServerRun.ComponentGlobalsRegistry
	for _, component := range featureComponents {
		effective, ok := registry.EffectiveVersionFor(component).(basecompatibility.MutableEffectiveVersion)
		if !ok {
			return nil, fmt.Errorf("the versions of component %s cannot be set", component)
		}
		effective.SetEmulationVersion(o.versions.emulation)
		effective.SetMinCompatibilityVersion(o.versions.minCompatibility)
	}
	if err := registry.Set(); err != nil {
		return nil, err
	}
	own, ok := registry.FeatureGateFor(concordComponent).(featuregate.MutableVersionedFeatureGate)
	if !ok {
		return nil, fmt.Errorf("component %s is not registered", concordComponent)
	}
	for name := range own.GetAll() { // AllBeta is one of them
		if err := own.ResetFeatureValueToDefault(name); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(own.SetFromMap(settings[concordComponent]), utilfeature.DefaultMutableFeatureGate.SetFromMap(settings[kubeComponent])); err != nil {
		return nil, err
	}
	return own.DeepCopy(), nil
}

// addVersionMetrics tells in metrics which features are on and which versions emulated.
func addVersionMetrics(registry basecompatibility.ComponentGlobalsRegistry) {
	registry.AddMetrics()
	for _, component := range []string{kubeComponent, concordComponent} {
		if gates, ok := registry.FeatureGateFor(component).(featuregate.MutableFeatureGate); ok {
			gates.AddMetrics()
		}
	}
}
