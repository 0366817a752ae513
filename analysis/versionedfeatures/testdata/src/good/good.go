package good

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

const Watching featuregate.Feature = "Watching"

var features = map[featuregate.Feature]featuregate.VersionedSpecs{
	Watching: {
		{Version: version.MustParse("1.34"), Default: false, PreRelease: featuregate.Alpha},
		{Version: version.MustParseMajorMinor("1.36"), Default: true, PreRelease: featuregate.Beta},
		{Version: version.MajorMinor(1, 37), MinCompatibilityVersion: version.MajorMinor(1, 37), Default: true, PreRelease: featuregate.GA, LockToDefault: true},
	},
	"Waiting": {{Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.Deprecated}},
}
