package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	e2e "github.com/concord-dev/concord/e2e/cluster"
)

func TestMain(m *testing.M) {
	e2e.Serve()
	testscript.Main(e2e.Suite{M: m}, map[string]func(){"kubectl-concord": main})
}

// TestScripts runs testdata/script, where no cluster is needed.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true})
}

// buildPlugin builds the plugin as it is released.
func buildPlugin(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubectl-concord")
	e2e.Compile(t, "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", file, ".")
	return file
}

// TestSize: the plugin is a small program, if linked as for a release, and starts at once.
func TestSize(t *testing.T) {
	file := buildPlugin(t)
	info, err := os.Stat(file)
	must(t, err)
	best := time.Hour
	for range 5 {
		began := time.Now()
		if out, err := exec.Command(file, "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "kubectl concord") {
			t.Fatalf("%v: %s", err, out)
		}
		best = min(best, time.Since(began))
	}
	t.Logf("%.1f MB, starts in %s", float64(info.Size())/1e6, best.Round(time.Millisecond))
	if info.Size() >= 45e6 {
		t.Errorf("it has %d bytes, which is not below 45 MB", info.Size())
	}
}
