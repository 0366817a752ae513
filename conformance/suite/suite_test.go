package suite

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	conformancetestdata "k8s.io/kubernetes/test/conformance/testdata"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	"k8s.io/kubernetes/test/e2e/invariants/logcheck"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	testfixtures "k8s.io/kubernetes/test/fixtures"

	// The suite freezes its labels when this package is initialised.
	_ "k8s.io/kubernetes/test/e2e/feature"

	_ "k8s.io/kubernetes/test/e2e/apimachinery"
	_ "k8s.io/kubernetes/test/e2e/auth"
	_ "k8s.io/kubernetes/test/e2e/common"
	_ "k8s.io/kubernetes/test/e2e/instrumentation"
	_ "k8s.io/kubernetes/test/e2e/kubectl"
	_ "k8s.io/kubernetes/test/e2e/network"

	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	logcheck.RegisterFlags(flag.CommandLine)
	list := flag.String("only", "", "file with the full names of the specs that are run, one on a line; empty: all")
	flag.Parse()
	if err := focus(*list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(testfixtures.GetTestFixturesFS())
	testfiles.AddFileSource(conformancetestdata.GetConformanceTestdataFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

// focus makes ginkgo run the specs that a file lists. There are too many names for ginkgo's own flag.
func focus(path string) error {
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for name := range strings.FieldsFuncSeq(string(raw), func(r rune) bool { return r == '\n' }) {
		words := strings.Fields(name)
		for i := range words {
			words[i] = regexp.QuoteMeta(words[i])
		}
		if err := flag.Set("ginkgo.focus", "^Kubernetes e2e suite "+strings.Join(words, `\s+`)+`\s*$`); err != nil {
			return err
		}
	}
	return nil
}

// TestE2E runs the specs that --only names, and all without it.
func TestE2E(t *testing.T) {
	e2e.RunE2ETests(t)
}
