package untabled

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

var features = map[featuregate.Feature]featuregate.VersionedSpecs{
	"A": {{Version: version.MustParse("1.37"), PreRelease: featuregate.Alpha}}, // want `feature_history.txt: no table of the histories beside the source` `feature A breaks the rule append-only: "1.37 alpha default=false" is not recorded`
}
