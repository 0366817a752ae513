package gates

import (
	"runtime/debug"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
)

// unsetGitVersion is the version that component-base holds in a binary without link flags.
var unsetGitVersion = baseversion.Get().GitVersion

// Reported returns a server's effective version as clients see it: with a version of Kubernetes that they can parse,
// even if the binary was built without the libraries' link flags.
func Reported(v basecompatibility.EffectiveVersion, registry basecompatibility.ComponentGlobalsRegistry) basecompatibility.EffectiveVersion {
	return reported{v, !registry.FeatureGateFor(Concord).Enabled(CompatibilityVersions)}
}

type reported struct {
	basecompatibility.EffectiveVersion
	// plain leaves out the fields that KEP-4330 added.
	plain bool
}

// Info implements EffectiveVersion.
func (v reported) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	if info != nil && v.plain {
		info.EmulationMajor, info.EmulationMinor, info.MinCompatibilityMajor, info.MinCompatibilityMinor = "", "", "", ""
	}
	if info != nil && (info.GitVersion == "" || info.GitVersion == unsetGitVersion) {
		info.GitVersion = builtFrom("v"+v.BinaryVersion().String()+".0") + "+concord"
		info.GitTreeState = "unknown"
		info.GitCommit = ""
	}
	return info
}

// builtFrom returns the linked release of Kubernetes; unknown if the binary does not name it.
func builtFrom(unknown string) string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "k8s.io/kubernetes" {
				return module.Version
			}
		}
	}
	return unknown
}
