package gates

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/version" // the metric as kube-apiserver has it

	"github.com/concord-dev/concord/build"
)

// TestName: the build is in the git version that clients are told, which they can parse.
func TestName(t *testing.T) {
	for want, of := range map[string]build.Info{
		"v1.37.2+concord.0.3.0":        {Version: "v0.3.0", Commit: "d60bc721213d4f6f", Date: "2026-11-24T08:00:00Z"},
		"v1.37.2+concord.d60bc721213d": {Version: "(devel)", Commit: "d60bc721213d4f6f"},
		"v1.37.2+concord":              {Version: "(devel)"},
	} {
		info := &apimachineryversion.Info{BuildDate: "1970-01-01T00:00:00Z"}
		name(info, "v1.37.2", of)
		if info.GitVersion != want || info.GitCommit != of.Commit || of.Date != "" && info.BuildDate != of.Date {
			t.Errorf("%+v, want %s", info, want)
		}
		if v, err := version.ParseSemantic(info.GitVersion); err != nil || v.String() != want[1:] {
			t.Errorf("%s is read as %s, error %v", info.GitVersion, v, err)
		}
	}
}

// TestBuildMetric: of kubernetes_build_info there is one sample, which names the build that was published last.
func TestBuildMetric(t *testing.T) {
	for _, want := range []string{"v1.37.2+concord.0.3.0", "v1.37.2+concord.0.3.1"} {
		publish(&apimachineryversion.Info{GitVersion: want})
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range families {
			for _, sample := range family.GetMetric() {
				for _, label := range sample.GetLabel() {
					if family.GetName() == "kubernetes_build_info" && label.GetName() == "git_version" {
						got = append(got, label.GetValue())
					}
				}
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("kubernetes_build_info is of %q, want %s", got, want)
		}
	}
}
