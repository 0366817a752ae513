package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestKrewManifest: filled in as "make plugin" does, the manifest has what krew asks for.
func TestKrewManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/krew/concord.yaml")
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("@VERSION@", "v1.2.3", "@OS@", "linux", "@ARCH@", "amd64", "@SHA256@", strings.Repeat("ab", 32)).Replace(string(text))
	var plugin struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription, Description string
			Platforms                              []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels map[string]string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(filled), &plugin); err != nil {
		t.Fatal(err)
	}
	p := plugin.Spec.Platforms
	if plugin.Kind != "Plugin" || plugin.Metadata.Name != "concord" || plugin.Spec.Version != "v1.2.3" || len(p) != 1 || p[0].Bin != "kubectl-concord" ||
		!regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p[0].SHA256) || !strings.HasSuffix(p[0].URI, "/v1.2.3/kubectl-concord_linux_amd64.tar.gz") ||
		p[0].Selector.MatchLabels["os"] != "linux" || len(plugin.Spec.ShortDescription) > 50 || plugin.Spec.Description == "" {
		t.Errorf("it says %+v", plugin)
	}
}
