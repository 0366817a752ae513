package versionedfeatures_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/concord-dev/concord/analysis/versionedfeatures"
)

// The folders of testdata/src say what is wanted of each in comments.
func TestAnalyzer(t *testing.T) {
	packages, err := filepath.Glob(filepath.Join("testdata", "src", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range packages {
		if name := filepath.Base(filepath.Dir(file)); !strings.HasSuffix(file, "_test.go") {
			t.Run(name, func(t *testing.T) { analysistest.Run(t, analysistest.TestData(), versionedfeatures.Analyzer, name) })
		}
	}
}

// A table that cannot be read fails the check and names the line.
func TestBadTable(t *testing.T) {
	for table, want := range map[string]string{
		"A 1.36 beta\n":                       "feature_history.txt:1: phase",
		"# fine\n\nA 1.36 gamma default=true": "feature_history.txt:3: phase",
		"A\n":                                 "feature_history.txt:1: phase",
	} {
		dir := t.TempDir()
		folder := filepath.Join(dir, "src", "a")
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"a.go": "package a\n", versionedfeatures.Table: table} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		failures := &failures{}
		analysistest.Run(failures, dir, versionedfeatures.Analyzer, "a")
		if all := strings.Join(failures.all, "\n"); !strings.Contains(all, want) {
			t.Errorf("table %q: %q, want %q", table, all, want)
		}
	}
}

// failures takes down the errors that analysistest reports.
type failures struct{ all []string }

// Errorf implements analysistest.Testing.
func (f *failures) Errorf(format string, args ...any) {
	f.all = append(f.all, fmt.Sprintf(format, args...))
}
