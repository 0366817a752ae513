// Command golangci-lint is golangci-lint with the check of feature histories as its module plugin,
// as KEP-4330 wants it ("Integrate into golangci-lint"). It is run in the folder tools, whose go.mod
// pins it, and checks the module above:
//
//	go run -C tools -mod=mod ./golangci-lint run
package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/concord-dev/concord/analysis/versionedfeatures"
)

// name is the plugin's in .golangci.yml.
const name = "versionedfeatures"

type plugin struct{}

// BuildAnalyzers implements register.LinterPlugin.
func (plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{versionedfeatures.Analyzer}, nil
}

// GetLoadMode implements register.LinterPlugin.
func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }

func main() {
	register.Plugin(name, func(any) (register.LinterPlugin, error) { return plugin{}, nil })
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "golangci-lint:", err)
		os.Exit(exitcodes.Failure)
	}
}

func run() error {
	if err := os.Chdir(".."); err != nil {
		return err
	}
	version, err := version()
	if err != nil {
		return err
	}
	return commands.Execute(commands.BuildInfo{Version: version, GoVersion: "unknown"})
}

// version is the key of golangci-lint's cached results, beside the sources: it depends on this
// program and on the tables of feature histories, which are no sources.
func version() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	files := []string{program}
	if err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == versionedfeatures.Table {
			files = append(files, path)
		}
		return err
	}); err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(file), len(content), content)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
