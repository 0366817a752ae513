//go:build ignore

// The generator of this package: runs openapi-gen on the API groups that Concord serves
// and drops from its output whatever no served type refers to (most of core/v1).
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/concord-dev/concord/server/builtin"
)

const (
	output = "zz_generated.openapi.go"
	module = "k8s.io/kube-openapi"
)

// whole are packages that are kept entirely: requests, responses and fields of several groups
// use them.
var whole = []string{
	"k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/apimachinery/pkg/runtime",
	"k8s.io/apimachinery/pkg/util/intstr", "k8s.io/apimachinery/pkg/version",
}

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "openapi")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	roots, packages := served()
	if err := generate(dir, append(packages, whole...)); err != nil {
		return err
	}
	source, err := os.ReadFile(filepath.Join(dir, output))
	if err != nil {
		return err
	}
	pruned, err := prune(source, roots)
	if err != nil {
		return err
	}
	return os.WriteFile(output, pruned, 0o644)
}

// served returns the Go types that are served, as "<package path>.<name>", and their packages.
func served() (roots map[string]bool, packages []string) {
	roots = map[string]bool{}
	for _, t := range builtin.OpenAPIScheme().AllKnownTypes() {
		roots[t.PkgPath()+"."+t.Name()] = true
		if strings.HasPrefix(t.PkgPath(), reflect.TypeOf(builtin.Persisted{}).PkgPath()) || slices.Contains(whole, t.PkgPath()) {
			continue
		}
		if !slices.Contains(packages, t.PkgPath()) {
			packages = append(packages, t.PkgPath())
		}
	}
	slices.Sort(packages)
	return roots, packages
}

// generate runs openapi-gen in the version that go.mod requires.
func generate(dir string, packages []string) error {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return fmt.Errorf("version of %s: %w", module, err)
	}
	command := exec.Command("go", append([]string{
		"run", module + "/cmd/openapi-gen@" + strings.TrimSpace(string(version)),
		"--output-dir", dir, "--output-file", output, "--output-pkg", "github.com/concord-dev/concord/server/builtin/openapi",
		"--report-filename", filepath.Join(dir, "violations"), "--go-header-file", os.DevNull,
	}, packages...)...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}

// pruner holds a generated file: for each definition the entry that registers it and the
// function that makes it.
type pruner struct {
	imports map[string]*ast.ImportSpec // by name in the file
	entries map[string]*ast.KeyValueExpr
	makers  map[string]*ast.FuncDecl // by function name
}

// prune keeps the definitions that roots reach.
func prune(source []byte, roots map[string]bool) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, output, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	p := pruner{imports: map[string]*ast.ImportSpec{}, entries: map[string]*ast.KeyValueExpr{}, makers: map[string]*ast.FuncDecl{}}
	p.read(file)
	kept := map[string]bool{}
	var keep func(name string)
	keep = func(name string) {
		entry, ok := p.entries[name]
		if kept[name] || !ok {
			return
		}
		kept[name] = true
		for _, reference := range p.references(p.maker(entry)) {
			keep(reference)
		}
	}
	for name := range p.entries {
		if roots[name] || slices.Contains(whole, name[:strings.LastIndex(name, ".")]) {
			keep(name)
		}
	}
	out := p.remove(fset, source, kept)
	return format.Source(out)
}

func (p *pruner) read(file *ast.File) {
	for _, spec := range file.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(importPath)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		p.imports[name] = spec
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			p.makers[f.Name.Name] = f
		}
	}
	ast.Inspect(p.makers["GetOpenAPIDefinitions"], func(n ast.Node) bool {
		if entry, ok := n.(*ast.KeyValueExpr); ok {
			p.entries[p.name(entry.Key)] = entry
		}
		return true
	})
	delete(p.makers, "GetOpenAPIDefinitions")
}

// name returns the type that an expression names: a string, or x.T{}.OpenAPIModelName().
func (p *pruner) name(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.CallExpr:
		if method, ok := e.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "OpenAPIModelName" {
			return p.name(method.X)
		}
	case *ast.CompositeLit:
		if t, ok := e.Type.(*ast.SelectorExpr); ok {
			importPath, _ := strconv.Unquote(p.imports[t.X.(*ast.Ident).Name].Path.Value)
			return importPath + "." + t.Sel.Name
		}
	}
	return ""
}

func (p *pruner) maker(entry *ast.KeyValueExpr) *ast.FuncDecl {
	return p.makers[entry.Value.(*ast.CallExpr).Fun.(*ast.Ident).Name]
}

func (p *pruner) references(maker *ast.FuncDecl) []string {
	var names []string
	ast.Inspect(maker, func(n ast.Node) bool {
		if expr, ok := n.(ast.Expr); ok {
			if name := p.name(expr); name != "" {
				names = append(names, name)
			}
		}
		return true
	})
	return names
}

// remove cuts what is not kept out of the source, and imports that nothing uses then.
func (p *pruner) remove(fset *token.FileSet, source []byte, kept map[string]bool) []byte {
	used := map[string]bool{"common": true, "spec": true}
	mark := func(node ast.Node) {
		ast.Inspect(node, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok {
					used[x.Name] = true
				}
			}
			return true
		})
	}
	type span struct{ from, to int }
	var cuts []span
	cut := func(from, to token.Pos, extra int) {
		cuts = append(cuts, span{fset.Position(from).Offset, fset.Position(to).Offset + extra})
	}
	for name, entry := range p.entries {
		maker := p.maker(entry)
		if kept[name] {
			mark(entry)
			mark(maker)
			continue
		}
		cut(entry.Pos(), entry.End(), len(","))
		cut(maker.Pos(), maker.End(), 0)
	}
	for name, spec := range p.imports {
		if !used[name] {
			cut(spec.Pos(), spec.End(), 0)
		}
	}
	slices.SortFunc(cuts, func(a, b span) int { return b.from - a.from })
	for _, c := range cuts {
		source = slices.Concat(source[:c.from], source[c.to:])
	}
	return collapse(source)
}

// collapse drops the blank lines that the cuts left.
func collapse(source []byte) []byte {
	var out bytes.Buffer
	blank := false
	inMap := false
	for _, line := range bytes.SplitAfter(source, []byte("\n")) {
		empty := len(bytes.TrimSpace(line)) == 0
		if bytes.Contains(line, []byte("map[string]common.OpenAPIDefinition{")) || bytes.HasPrefix(line, []byte("import (")) {
			inMap = true
		}
		if bytes.HasPrefix(line, []byte("}")) || bytes.HasPrefix(line, []byte(")")) {
			inMap = false
		}
		if empty && (blank || inMap) {
			continue
		}
		blank = empty
		out.Write(line)
	}
	return out.Bytes()
}
