package good

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

// Gates of a test are nobody's history.
var toy = map[featuregate.Feature]featuregate.VersionedSpecs{
	"Toy": {{Version: version.MustParse("1.0"), PreRelease: featuregate.Alpha}},
}
