package unreadable

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

var (
	name    featuregate.Feature = "Hidden"
	release                     = version.MustParse("1.37")
	on                          = true
	phase                       = featuregate.FeatureSpec{}
	specs                       = featuregate.VersionedSpecs{{Version: version.MustParse("1.37")}} // want `a history outside of a literal map\[featuregate.Feature\]featuregate.VersionedSpecs cannot be checked`
)

var unversioned = map[featuregate.Feature]featuregate.FeatureSpec{ // want `features without versions are the same at every release that is emulated`
	"E": {Default: true},
}

var features = map[featuregate.Feature]featuregate.VersionedSpecs{
	name: {{Version: version.MustParse("1.37")}}, // want `the name of a feature and its history must be literals to be checked`
	"A":  specs,                                  // want `the name of a feature and its history must be literals to be checked`
	"B": {
		{Version: release, PreRelease: featuregate.Beta}, // want `feature B: a version must be a call of package version with constants to be checked`
	},
	"C": {
		{Version: version.MustParse("1.37"), Default: on}, // want `feature C: Default must be a constant to be checked`
	},
	"D": {
		phase, // want `feature D: a phase must be a literal to be checked`
	},
}
