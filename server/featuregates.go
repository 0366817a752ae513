package server

import (
	"errors"
	"fmt"
	"strings"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/gates"
)

// registerGates makes Concord a component of the registry, unless it is one.
func registerGates(registry basecompatibility.ComponentGlobalsRegistry) {
	utilruntime.Must(gates.Register(registry))
}

func gatesUsage() string {
	return fmt.Sprintf("Comma-separated Feature=true|false pairs; %s: before a name means Concord's own features, %s: the libraries'. Concord's own are %s. concord apis --features lists all.",
		gates.Concord, gates.Kube, strings.Join(gates.New(compat.BinaryVersion()).KnownFeatures(), ", "))
}

// Features computes which features a server with these options has on, without starting
// anything and without touching the process's gates. Versions must be complete.
func (o *Options) Features() ([]gates.Row, error) {
	known, settings, err := o.gateSettings()
	if err != nil {
		return nil, err
	}
	return gates.Plan(known, settings, compat.Options{Binary: o.versions.binary, Emulation: o.versions.emulation, MinCompatibility: o.versions.minCompatibility})
}

// gateSettings returns the features that there are and the settings of --feature-gates.
func (o *Options) gateSettings() (gates.Known, gates.Settings, error) {
	known := gates.KnownTo(o.ServerRun.ComponentGlobalsRegistry)
	settings, err := gates.Split(o.FeatureGates, known)
	if err != nil {
		err = fmt.Errorf("invalid value for flag --feature-gates: %w", err)
	}
	return known, settings, err
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
	for _, component := range gates.Components {
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
	own, ok := registry.FeatureGateFor(gates.Concord).(featuregate.MutableVersionedFeatureGate)
	if !ok {
		return nil, fmt.Errorf("component %s is not registered", gates.Concord)
	}
	for name := range own.GetAll() { // AllBeta is one of them
		if err := own.ResetFeatureValueToDefault(name); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(own.SetFromMap(settings[gates.Concord]), utilfeature.DefaultMutableFeatureGate.SetFromMap(settings[gates.Kube])); err != nil {
		return nil, err
	}
	return own.DeepCopy(), nil
}
