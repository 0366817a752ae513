// Package versionedfeatures is a static check of versioned feature gates (KEP-4330, "Changes to Feature Gates"; its Beta criteria ask for it).
//
// A package that declares gates, in literals of type map[featuregate.Feature]featuregate.VersionedSpecs, keeps a table of their histories
// beside its source, in the file Table. The check fails when the code and the table differ or a history breaks a rule of package compat:
// a history only grows at its end, nothing goes back in maturity, and nothing is removed while a release that can be emulated has it.
package versionedfeatures

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/compat"
)

// Table is the file, beside the source, in which a package's histories are recorded: a line "<feature> <phase>" for each phase, as
// compat.Phase writes it, the phases of one feature in order. Lines that begin with # are comments. It is written by hand, and a line is
// never changed or taken out.
const Table = "feature_history.txt"

// Analyzer is the check. Files of tests are left out.
var Analyzer = &analysis.Analyzer{
	Name: "versionedfeatures",
	Doc:  "check that histories of versioned feature gates only grow, never lose maturity, and end only out of the emulated range",
	Run:  run,
}

const (
	gates    = "k8s.io/component-base/featuregate"
	versions = "k8s.io/apimachinery/pkg/util/version"
)

func run(pass *analysis.Pass) (any, error) {
	// Tests declare gates of their own, which no release has.
	files := slices.DeleteFunc(slices.Clone(pass.Files), func(f *ast.File) bool {
		return strings.HasSuffix(pass.Fset.Position(f.Pos()).Filename, "_test.go")
	})
	if len(files) == 0 {
		return nil, nil
	}
	d := declared{history: map[string][]compat.Phase{}, at: map[string]token.Pos{}}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			switch {
			case !ok:
			case isMapOf(pass, literal, "VersionedSpecs"):
				d.read(pass, literal)
				return false
			case isMapOf(pass, literal, "FeatureSpec"):
				pass.Reportf(literal.Pos(), "features without versions are the same at every release that is emulated: declare a featuregate.VersionedSpecs of each")
			case named(pass.TypesInfo.TypeOf(literal), gates, "VersionedSpecs") && len(literal.Elts) > 0:
				pass.Reportf(literal.Pos(), "a history outside of a literal map[featuregate.Feature]featuregate.VersionedSpecs cannot be checked")
			}
			return true
		})
	}
	recorded, err := readTable(filepath.Join(filepath.Dir(pass.Fset.Position(files[0].Pos()).Filename), Table))
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && len(d.at) == 0:
		return nil, nil
	case missing:
		pass.Reportf(d.at[slices.Min(slices.Collect(maps.Keys(d.at)))], "%s: no table of the histories beside the source", Table)
	case err != nil:
		return nil, err
	}
	for _, name := range d.unread {
		delete(recorded, name)
		delete(d.history, name)
	}
	for _, breach := range compat.CheckHistories(recorded, d.history, compat.BinaryVersion()) {
		pos, ok := d.at[breach.Feature]
		if !ok {
			pos = files[0].Name.Pos()
		}
		pass.Reportf(pos, "%s", breach)
	}
	return nil, nil
}

func isMapOf(pass *analysis.Pass, literal *ast.CompositeLit, element string) bool {
	t := pass.TypesInfo.TypeOf(literal)
	if t == nil {
		return false
	}
	m, ok := t.Underlying().(*types.Map)
	return ok && named(m.Key(), gates, "Feature") && named(m.Elem(), gates, element)
}

func named(t types.Type, path, name string) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == name && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == path
}

// declared are the features of a package.
type declared struct {
	history map[string][]compat.Phase
	at      map[string]token.Pos
	// unread are those whose history cannot be read, which is reported and not judged.
	unread []string
}

// read reads the histories in one map and reports what cannot be read.
func (d *declared) read(pass *analysis.Pass, literal *ast.CompositeLit) {
	for _, element := range literal.Elts {
		entry := element.(*ast.KeyValueExpr) // a map literal has no others
		key := pass.TypesInfo.Types[entry.Key].Value
		specs, ok := entry.Value.(*ast.CompositeLit)
		if key == nil || !ok {
			pass.Reportf(entry.Pos(), "the name of a feature and its history must be literals to be checked")
			continue
		}
		name := constant.StringVal(key)
		if _, twice := d.at[name]; twice {
			pass.Reportf(entry.Pos(), "feature %s is declared twice in this package", name)
			continue
		}
		d.history[name], d.at[name] = nil, entry.Pos()
		for _, element := range specs.Elts {
			phase, err := readPhase(pass, element)
			if err != nil {
				pass.Reportf(element.Pos(), "feature %s: %v", name, err)
				d.unread = append(d.unread, name)
			}
			d.history[name] = append(d.history[name], phase)
		}
	}
}

var stages = map[string]compat.Stage{
	"PRE-ALPHA": compat.StageAbsent, "ALPHA": compat.StageAlpha, "BETA": compat.StageBeta, "": compat.StageStable, "DEPRECATED": compat.StageDeprecated,
}

// readPhase reads one featuregate.FeatureSpec.
func readPhase(pass *analysis.Pass, element ast.Expr) (compat.Phase, error) {
	p := compat.Phase{Stage: compat.StageStable, Since: version.MajorMinor(0, 0)}
	spec, ok := element.(*ast.CompositeLit)
	if !ok {
		return p, errors.New("a phase must be a literal to be checked")
	}
	for _, element := range spec.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return p, errors.New("the fields of a phase must be named")
		}
		name, value := field.Key.(*ast.Ident).Name, pass.TypesInfo.Types[field.Value].Value
		var err error
		switch name {
		case "Version":
			p.Since, err = readVersion(pass, field.Value)
		case "MinCompatibilityVersion":
			p.MinCompatibility, err = readVersion(pass, field.Value)
		case "Default", "LockToDefault", "PreRelease":
			if value == nil {
				return p, fmt.Errorf("%s must be a constant to be checked", name)
			}
			switch name {
			case "Default":
				p.Default = constant.BoolVal(value)
			case "LockToDefault":
				p.Locked = constant.BoolVal(value)
			case "PreRelease":
				if p.Stage, ok = stages[constant.StringVal(value)]; !ok {
					err = fmt.Errorf("no stage %s", value)
				}
			}
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// readVersion reads version.MustParse("1.36"), version.MustParseMajorMinor("1.36") or version.MajorMinor(1, 36).
func readVersion(pass *analysis.Pass, e ast.Expr) (*version.Version, error) {
	unreadable := errors.New("a version must be a call of package version with constants to be checked")
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil, unreadable
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, unreadable
	}
	callee := pass.TypesInfo.Uses[selector.Sel]
	if callee == nil || callee.Pkg() == nil || callee.Pkg().Path() != versions {
		return nil, unreadable
	}
	var arguments []string
	for _, a := range call.Args {
		value := pass.TypesInfo.Types[a].Value
		if value == nil {
			return nil, unreadable
		}
		if value.Kind() == constant.String {
			arguments = append(arguments, constant.StringVal(value))
		} else {
			arguments = append(arguments, value.ExactString())
		}
	}
	v, err := version.ParseMajorMinor(strings.Join(arguments, "."))
	if err != nil {
		return nil, unreadable
	}
	return v, nil
}

func readTable(file string) (map[string][]compat.Phase, error) {
	// Not pass.ReadFile, which knows only files of the build. The go command does not see this file either, and would keep an old
	// result of go vet -vettool: run the check as a program, as cmd/concord-vet.
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	recorded := map[string][]compat.Phase{}
	for i, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		phase, err := compat.ParsePhase(rest)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		recorded[name] = append(recorded[name], phase)
	}
	return recorded, nil
}
