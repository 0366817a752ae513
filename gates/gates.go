// Package gates is Concord's own feature gates beside Kubernetes': a component of the process's registry, the flags that set the gates of both, and
// what is on at which versions and why (KEP-4330, "Changes to Feature Gates").
package gates

import (
	"errors"
	"fmt"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// Concord's own feature gates. They are a component of their own in the libraries' registry: upstream has a gate StorageVersionAPI too, an
// alpha one.
const (
	// StorageVersionAPI is the protocol: the StorageVersion API, gate, fence, collector, trigger and
	// rewriting. Without it the server's identity Lease says so, and there is no agreement while the server lives.
	StorageVersionAPI featuregate.Feature = "StorageVersionAPI"
	// CompatibilityVersions lets the server emulate an older release (KEP-4330). Without it the version flags are
	// refused, and /version does not show an emulated version.
	CompatibilityVersions featuregate.Feature = "CompatibilityVersions"
	// CRDBoundedNameCost relaxes the validation of CustomResourceDefinitions as Kubernetes 1.37 does: the cost of a rule is estimated with
	// metadata.name at most 253 bytes long, where earlier releases allow for 3 MiB. They refuse definitions that only the better estimate
	// accepts, so it waits until none of them has to be reckoned with (KEP-4330, "Validation ratcheting" and "Changes to Feature Gates").
	CRDBoundedNameCost featuregate.Feature = "CRDBoundedNameCost"
)

// The components whose gates --feature-gates sets. Where none is named, Concord's own gates are Concord's, and all others kube's.
const (
	Concord = "concord"
	Kube    = basecompatibility.DefaultKubeComponent
)

// Components are the components whose gates the flag sets. A name that several components have belongs to the first.
var Components = []string{Concord, Kube}

// refused are kube's gates that stay off, and why.
var refused = map[featuregate.Feature]string{
	// It starts upstream's own storage version machinery.
	StorageVersionAPI: "Concord's own gate of that name replaces what it does",
	// Rewriting reads custom resources in CBOR, and writes JSON.
	"CBORServingAndStorage": "migrations would write in JSON what servers store in CBOR",
}

// ErrRefused refuses one of kube's gates with which Concord could not keep its promises.
var ErrRefused = errors.New("this feature of Kubernetes stays off")

func refusal(name featuregate.Feature) error {
	return fmt.Errorf("%w, as %s; allowed is false", ErrRefused, refused[name])
}

// features is the history of Concord's own gates: rows are only ever appended (KEP-4330, "Feature Gate"). StorageVersionAPI and
// CompatibilityVersions are beta and on from the first release that any Concord emulates: gates that keep stored objects readable must not
// depend on the release that is emulated.
var features = map[featuregate.Feature]featuregate.VersionedSpecs{
	StorageVersionAPI:     {{Version: version.MajorMinor(1, 34), Default: true, PreRelease: featuregate.Beta}},
	CompatibilityVersions: {{Version: version.MajorMinor(1, 34), Default: true, PreRelease: featuregate.Beta}},
	CRDBoundedNameCost: {
		{Version: version.MajorMinor(1, 37), Default: false, PreRelease: featuregate.Beta},
		{Version: version.MajorMinor(1, 37), Default: true, PreRelease: featuregate.Beta, MinCompatibilityVersion: version.MajorMinor(1, 37)},
	},
}

// New returns Concord's own gates at an emulated release, by default.
func New(emulation *version.Version) featuregate.MutableVersionedFeatureGate {
	gates := featuregate.NewVersionedFeatureGate(emulation)
	utilruntime.Must(gates.AddVersioned(features))
	return gates
}

// Register makes Concord a component of the registry that emulates the release that kube does, unless it is one. Component kube must be
// registered before, and flags be added afterwards: adding them closes the list of gates.
//
// A program that stands for an older release than the libraries' emulates that one from here on, unless told otherwise.
func Register(registry basecompatibility.ComponentGlobalsRegistry) error {
	if registry.EffectiveVersionFor(Concord) != nil {
		return nil
	}
	binary := compat.BinaryVersion()
	kube, ok := registry.EffectiveVersionFor(Kube).(basecompatibility.MutableEffectiveVersion)
	if !ok {
		return fmt.Errorf("component %s is not registered", Kube)
	}
	if kube.EmulationVersion().GreaterThan(binary) {
		kube.SetEmulationVersion(binary)
	}
	oldest := compat.AllowedEmulation(binary)[0]
	if err := registry.Register(Concord, basecompatibility.NewEffectiveVersion(binary, false, oldest, oldest), New(binary)); err != nil {
		return err
	}
	return registry.SetVersionMapping(Kube, Concord, func(from *version.Version) *version.Version { return from })
}

// Versions returns the versions of component kube, set or not.
func Versions(registry basecompatibility.ComponentGlobalsRegistry) compat.Options {
	kube := registry.EffectiveVersionFor(Kube)
	return compat.Options{Emulation: kube.EmulationVersion(), MinCompatibility: kube.MinCompatibilityVersion()}
}
