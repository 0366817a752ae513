package generic

import (
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"
	baseversion "k8s.io/component-base/version"
)

// unsetGitVersion is what component-base holds in a binary without link flags.
var unsetGitVersion = baseversion.Get().GitVersion

// withGitVersion reports a version that clients can parse also when the binary was built
// without the libraries' link flags.
type withGitVersion struct {
	basecompatibility.EffectiveVersion
	// plain leaves out what KEP-4330 added.
	plain bool
}

// Info implements EffectiveVersion.
func (v withGitVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	if info != nil && v.plain {
		info.EmulationMajor, info.EmulationMinor, info.MinCompatibilityMajor, info.MinCompatibilityMinor = "", "", "", ""
	}
	if info != nil && (info.GitVersion == "" || info.GitVersion == unsetGitVersion) {
		info.GitVersion = "v" + v.BinaryVersion().String() + ".0+concord"
		info.GitTreeState = "unknown"
		info.GitCommit = ""
	}
	return info
}
