package bad // want `feature Dropped breaks the rule in-range: it is gone, but 1.37 can still emulate releases that have it as beta in 1.36, beta in 1.37`

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/featuregate"
)

var features = map[featuregate.Feature]featuregate.VersionedSpecs{ // the table's order is its own
	"Rewritten": { // want `feature Rewritten breaks the rule append-only: "1.36 beta default=true" was recorded and is now "1.35 beta default=true": put it back and add a phase after it`
		{Version: version.MustParse("1.35"), Default: true, PreRelease: featuregate.Beta},
	},
	"Shortened": { // want `feature Shortened breaks the rule append-only: "1.36 beta default=true" was recorded and is gone: put it back`
		{Version: version.MustParse("1.34"), Default: false, PreRelease: featuregate.Alpha},
	},
	"Unrecorded": { // want `feature Unrecorded breaks the rule append-only: "1.37 stable default=true" is not recorded: add it to the table`
		{Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.Beta},
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.GA},
	},
	"Backdated": { // want `feature Backdated breaks the rule append-only: "1.36 stable default=true" would change what 1.36 and later releases had: a new phase begins with 1.37 or later`
		{Version: version.MustParse("1.34"), Default: true, PreRelease: featuregate.Beta},
		{Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.GA},
	},
	"Regressed": { // want `feature Regressed breaks the rule maturing: stable goes back to beta in 1.37`
		{Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.GA},
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta},
	},
	"Unlocked": { // want `feature Unlocked breaks the rule maturing: it is unlocked again in 1.37`
		{Version: version.MustParse("1.36"), Default: true, PreRelease: featuregate.GA, LockToDefault: true},
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.GA},
	},
	"New": { // want `feature New breaks the rule append-only: "1.37 alpha default=false" is not recorded: add it to the table`
		{Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Alpha},
	},
}
