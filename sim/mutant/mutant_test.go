package mutant

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMutants applies every mutant to the present sources, and type-checks the packages that it
// changes. So it notices if the lines of a rule have changed.
func TestMutants(t *testing.T) {
	mutants, err := All()
	must(t, err)
	root, err := Root(t.Context())
	must(t, err)
	dirs := map[string]bool{}
	for _, m := range mutants {
		for _, f := range m.Files() {
			dirs[path.Dir(f)] = true
		}
	}
	checker := newChecker(t, root, dirs)
	for _, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			patched, err := m.Apply(root)
			must(t, err)
			checked := map[string]bool{}
			for _, f := range m.Files() {
				if dir := path.Dir(f); !checked[dir] {
					checked[dir] = true
					if err := checker.check(dir, patched); err != nil {
						t.Errorf("%s: %v", dir, err)
					}
				}
			}
		})
	}
	all, err := graft(root, mutants)
	must(t, err)
	for dir := range dirs {
		if err := checker.check(dir, all); err != nil {
			t.Errorf("%s with all mutants: %v", dir, err)
		}
	}
}

// checker type-checks single packages of the module against the export data of the
// packages that they import.
type checker struct {
	root     string
	packages map[string]listed // by directory
	imports  types.Importer
	fset     *token.FileSet
}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func newChecker(t *testing.T, root string, dirs map[string]bool) *checker {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	for dir := range dirs {
		args = append(args, "./"+dir)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	c := &checker{root: root, packages: map[string]listed{}, fset: token.NewFileSet()}
	exports := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p listed
		must(t, decoder.Decode(&p))
		exports[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(root, p.Dir); err == nil {
			c.packages[filepath.ToSlash(dir)] = p
		}
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("%s has no export data", path)
		}
		return os.Open(exports[path])
	})
	return c
}

func (c *checker) check(dir string, patched map[string][]byte) error {
	p, ok := c.packages[dir]
	if !ok {
		return errors.New("no such package")
	}
	var files []*ast.File
	names := slices.Clone(p.GoFiles)
	for file := range patched {
		if path.Dir(file) == dir && !slices.Contains(names, path.Base(file)) {
			names = append(names, path.Base(file))
		}
	}
	for _, name := range names {
		var source any
		if text, ok := patched[path.Join(dir, name)]; ok {
			source = text
		}
		f, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	var failed []error
	config := types.Config{Importer: c.imports, Error: func(err error) { failed = append(failed, err) }}
	_, err := config.Check(p.ImportPath, c.fset, files, nil)
	return errors.Join(append(failed, err)...)
}

// TestOutdated: an edit whose lines are not exactly once in the file is refused.
func TestOutdated(t *testing.T) {
	source := "a\nb\na\nbc\n"
	for _, e := range []Edit{
		{Old: "a\n", New: "x\n"}, // twice, once of these at the start of the file
		{Old: "c\n", New: "x\n"}, // not a whole line
		{Old: "d\n", New: "x\n"}, // nowhere
		{Old: "b\n", New: "b\n"}, // no change
		{Old: "", New: "b\n"},    // nothing
	} {
		if got, err := e.apply([]byte(source)); err == nil {
			t.Errorf("replacing %q gave %q", e.Old, got)
		}
	}
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "a.go"), []byte(source), 0o600))
	m := Mutant{Name: "m", Edits: []Edit{{File: "a.go", Old: "b\n", New: "x\n"}, {File: "a.go", Old: "x\na\n", New: "y\n"}}}
	patched, err := m.Apply(root)
	if err != nil || string(patched["a.go"]) != "a\ny\nbc\n" {
		t.Errorf("two edits of one file gave %q, %v", patched["a.go"], err)
	}
	m.Edits = append(m.Edits, Edit{File: "a.go", Old: "b\n", New: "x\n"})
	if _, err := m.Apply(root); !errors.Is(err, ErrOutdated) {
		t.Errorf("an edit of what an earlier one replaced: %v", err)
	}
	m.Edits = []Edit{{File: "gone.go", Old: "b\n", New: "x\n"}}
	if _, err := m.Apply(root); !errors.Is(err, ErrOutdated) {
		t.Errorf("a file that is gone: %v", err)
	}
}

func TestParse(t *testing.T) {
	m, err := Parse("name", []byte(`kind: defect
section: 3.2
rule: One
 sentence.
schedule: It goes: wrong.
violates: I1 I2
find: --exhaustive
-- a.go --
old
-- becomes --
new
`))
	must(t, err)
	if m.Rule != "One sentence." || m.Schedule != "It goes: wrong." || !slices.Equal(m.Violates, []string{"I1", "I2"}) ||
		!slices.Equal(m.Find, []string{"--exhaustive"}) || !slices.Equal(m.Edits, []Edit{{File: "a.go", Old: "old\n", New: "new\n"}}) {
		t.Errorf("parsed %+v", m)
	}
	for name, text := range map[string]string{
		"no edits":    "kind: rule\nsection: 3\nrule: x\nschedule: x\n",
		"no kind":     "section: 3\nrule: x\nschedule: x\n-- a.go --\nx\n-- becomes --\ny\n",
		"unknown key": "kind: rule\nsection: 3\nrule: x\nschedule: x\nfoo: bar\n-- a.go --\nx\n-- becomes --\ny\n",
		"no pair":     "kind: rule\nsection: 3\nrule: x\nschedule: x\n-- a.go --\nx\n-- b.go --\ny\n",
		"odd":         "kind: rule\nsection: 3\nrule: x\nschedule: x\n-- a.go --\nx\n",
	} {
		if _, err := Parse(name, []byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
