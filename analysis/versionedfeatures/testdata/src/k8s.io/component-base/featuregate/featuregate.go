// Package featuregate has the types that the check looks for.
package featuregate

import "k8s.io/apimachinery/pkg/util/version"

type Feature string

type prerelease string

const (
	Alpha      = prerelease("ALPHA")
	Beta       = prerelease("BETA")
	GA         = prerelease("")
	Deprecated = prerelease("DEPRECATED")
)

type FeatureSpec struct {
	Default                 bool
	LockToDefault           bool
	PreRelease              prerelease
	Version                 *version.Version
	MinCompatibilityVersion *version.Version
}

type VersionedSpecs []FeatureSpec
