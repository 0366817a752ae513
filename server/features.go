package server

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// CRDBoundedNameCost relaxes the validation of CustomResourceDefinitions as Kubernetes
// 1.37 does: what a rule costs is estimated with metadata.name at most 253 bytes long,
// where earlier releases allow for 3 MiB. They refuse what only the better estimate
// accepts, so it waits until none of them has to be reckoned with (KEP-4330, "Validation
// ratcheting" and "Changes to Feature Gates").
const CRDBoundedNameCost featuregate.Feature = "CRDBoundedNameCost"

func init() {
	utilruntime.Must(utilfeature.DefaultMutableFeatureGate.AddVersioned(map[featuregate.Feature]featuregate.VersionedSpecs{
		CRDBoundedNameCost: {
			{Version: version.MajorMinor(1, 37), Default: false, PreRelease: featuregate.Beta},
			{Version: version.MajorMinor(1, 37), Default: true, PreRelease: featuregate.Beta, MinCompatibilityVersion: version.MajorMinor(1, 37)},
		},
	}))
}
