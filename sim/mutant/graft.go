package mutant

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// One program has all mutants, since linking takes longer than finding a violation: next
// to each function that a mutant changes stands a copy as the mutant has it, and the
// function begins by calling that copy if the mutant was chosen.

// chosen is the environment variable that chooses a mutant.
const chosen = "CONCORD_MUTANT"

// graft returns the sources with all mutants in them, by their paths in the module, and
// some new ones. A mutant may change functions and imports and add declarations.
func graft(root string, mutants []Mutant) (map[string][]byte, error) {
	sources := map[string]*grafted{}
	for _, m := range mutants {
		patched, err := m.Apply(root)
		if err != nil {
			return nil, err
		}
		for _, file := range m.Files() {
			if sources[file] == nil {
				if sources[file], err = parse(root, file); err != nil {
					return nil, err
				}
			}
			if err := sources[file].add(m, patched[file]); err != nil {
				return nil, fmt.Errorf("mutant %s: %s: %w", m.Name, file, err)
			}
		}
	}
	all := map[string][]byte{}
	for file, g := range sources {
		all[file] = g.source()
		// The choice is a variable of each package.
		all[path.Join(path.Dir(file), "zz_mutant.go")] = []byte("package " + g.name + "\n\nimport \"os\"\n\nvar chosenMutant = os.Getenv(\"" + chosen + "\")\n")
	}
	return all, nil
}

// grafted is one source with the changes that mutants make to it.
type grafted struct {
	name    string // of the package
	text    []byte
	funcs   map[string]*ast.FuncDecl
	others  map[string]bool // the text of the other declarations
	imports map[string]bool // the text of the import specs
	base    int             // the position of the text's first byte
	clause  int             // the offset of the package clause's end
	inserts []insert
	added   bytes.Buffer
	specs   []string // imports that mutants need
}

// insert is a text that goes to an offset of the source.
type insert struct {
	at   int
	text string
}

func parse(root, file string) (*grafted, error) {
	text, err := read(root, file)
	if err != nil {
		return nil, err
	}
	return parseText(text)
}

func parseText(text []byte) (*grafted, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	g := &grafted{name: f.Name.Name, text: text, base: int(f.FileStart), clause: int(f.Name.End() - f.FileStart), funcs: map[string]*ast.FuncDecl{}, others: map[string]bool{}, imports: map[string]bool{}}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			g.funcs[g.key(d)] = d
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				g.others[g.slice(d)] = true
				continue
			}
			for _, spec := range d.Specs {
				g.imports[g.slice(spec)] = true
			}
		}
	}
	return g, nil
}

// slice returns a node's text.
func (g *grafted) slice(n ast.Node) string { return string(g.text[g.at(n.Pos()):g.at(n.End())]) }

func (g *grafted) at(p token.Pos) int { return int(p) - g.base }

// key names a function within its package.
func (g *grafted) key(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	return strings.TrimLeft(g.slice(d.Recv.List[0].Type), "*") + "." + d.Name.Name
}

// add takes in the source as a mutant changes it.
func (g *grafted) add(m Mutant, patched []byte) error {
	p, err := parseText(patched)
	if err != nil {
		return err
	}
	for spec := range p.imports {
		if !g.imports[spec] && !slices.Contains(g.specs, spec) {
			g.specs = append(g.specs, spec)
		}
	}
	for text := range g.others {
		if !p.others[text] {
			return fmt.Errorf("it changes a declaration that is no function: %.60q", text)
		}
	}
	for text := range p.others {
		if !g.others[text] {
			fmt.Fprintf(&g.added, "\n%s\n", text)
		}
	}
	suffix := "_" + strings.ReplaceAll(m.Name, "-", "_")
	for key, d := range p.funcs {
		old := g.funcs[key]
		switch {
		case old == nil:
			fmt.Fprintf(&g.added, "\n%s\n", p.slice(d))
		case g.slice(old) != p.slice(d):
			call, err := g.call(old, suffix)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			g.inserts = append(g.inserts, insert{at: g.at(old.Body.Lbrace) + 1, text: fmt.Sprintf("\n\tif chosenMutant == %q {\n\t\t%s\n\t}\n", m.Name, call)})
			from, name := p.at(d.Pos()), p.at(d.Name.End())
			fmt.Fprintf(&g.added, "\n%s%s%s\n", p.text[from:name], suffix, p.text[name:p.at(d.End())])
		}
	}
	for key := range g.funcs {
		if p.funcs[key] == nil {
			return fmt.Errorf("it has no function %s", key)
		}
	}
	return nil
}

var errUnnamed = errors.New("the mutant has to name its receiver and parameters")

// call returns the statement that calls a function's copy.
func (g *grafted) call(d *ast.FuncDecl, suffix string) (string, error) {
	name := d.Name.Name + suffix
	if d.Recv != nil {
		if len(d.Recv.List[0].Names) != 1 {
			return "", errUnnamed
		}
		name = d.Recv.List[0].Names[0].Name + "." + name
	}
	var args []string
	for _, field := range d.Type.Params.List {
		if len(field.Names) == 0 {
			return "", errUnnamed
		}
		for _, n := range field.Names {
			arg := n.Name
			if arg == "_" {
				// The parameter gets a name in the place of the blank.
				arg = "blank" + strconv.Itoa(len(args))
				if !slices.ContainsFunc(g.inserts, func(i insert) bool { return i.at == g.at(n.End()) }) {
					g.inserts = append(g.inserts, insert{at: g.at(n.End()), text: arg})
				}
				arg = "_" + arg
			}
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if d.Type.Results == nil {
		return call + "\n\t\treturn", nil
	}
	return "return " + call, nil
}

// source returns the text with everything that was added.
func (g *grafted) source() []byte {
	if len(g.specs) > 0 {
		slices.Sort(g.specs)
		g.inserts = append(g.inserts, insert{at: g.clause, text: "\n\nimport (\n\t" + strings.Join(g.specs, "\n\t") + "\n)"})
	}
	slices.SortStableFunc(g.inserts, func(a, b insert) int { return a.at - b.at })
	var out bytes.Buffer
	last := 0
	for _, i := range g.inserts {
		out.Write(g.text[last:i.at])
		out.WriteString(i.text)
		last = i.at
	}
	out.Write(g.text[last:])
	out.Write(g.added.Bytes())
	return out.Bytes()
}
