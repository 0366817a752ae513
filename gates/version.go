package gates

import (
	"cmp"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"
	baseversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/build"
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
		name(info, builtFrom("v"+v.BinaryVersion().String()+".0"), build.This())
	}
	return info
}

// name names the build after the release of Kubernetes: in the build metadata, which clients do not compare.
func name(info *apimachineryversion.Info, release string, of build.Info) {
	info.GitVersion = release + "+concord"
	if id := of.ID(); id != "" {
		info.GitVersion += "." + id
	}
	info.GitCommit, info.GitTreeState = of.Commit, "unknown"
	info.BuildDate = cmp.Or(of.Date, info.BuildDate)
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

// publishing is held while metrics are published, for programs that start several servers.
var publishing sync.Mutex

// Announce says which build this is, in the log and as the metric kubernetes_build_info, and publishes as metrics which
// features are on and which versions are emulated.
func Announce(registry basecompatibility.ComponentGlobalsRegistry) {
	info := Reported(registry.EffectiveVersionFor(Kube), registry).Info()
	klog.InfoS("Starting", "version", info.GitVersion, "build", build.This().String())
	publishing.Lock()
	defer publishing.Unlock()
	publish(info)
	registry.AddMetrics()
	for _, component := range Components {
		if gates, ok := registry.FeatureGateFor(component).(featuregate.MutableFeatureGate); ok {
			gates.AddMetrics()
		}
	}
}

// publish sets the metric kubernetes_build_info anew: component-base does so before main, by link flags that this binary
// does not have. Help and labels are those of component-base: no other ones are accepted for a name once used.
func publish(info *apimachineryversion.Info) {
	metric := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})
	metric.WithLabelValues(info.Major, info.Minor, info.GitVersion, info.GitCommit, info.GitTreeState, info.BuildDate, info.GoVersion, info.Compiler, info.Platform).Set(1)
	legacyregistry.Registerer().Unregister(metric)
	legacyregistry.RawMustRegister(metric)
}
