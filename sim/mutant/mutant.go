// Package mutant proves that the simulator can see. A mutant is Concord without one of
// the rules that DESIGN section 3 asks for, or with a known defect of an earlier system:
// a patch of the sources, built with go build -overlay and run by the simulator until an
// invariant is violated. A rule whose mutant violates nothing is either not needed, and
// then it says which rule covers it, or the simulator is blind.
package mutant

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"
)

// Mutant is one rule dropped, or one defect put in.
//
// It is stored as a txtar archive. The comment holds "key: value" lines; a line that
// begins with a space continues the one before. The files come in pairs: the first is
// named for a source and holds whole lines of it, which must occur there exactly once;
// the second is named "becomes" and holds the lines that replace them.
type Mutant struct {
	Name string
	// Kind says where the mutant comes from.
	Kind Kind
	// Rule is the sentence that the mutant breaks, and Section where the design has it.
	Rule, Section string
	// Schedule tells people how the mutant goes wrong.
	Schedule string
	// Violates names the invariants (DESIGN 3.7) that it may violate; none means any.
	Violates []string
	// Find are arguments for the simulator that find the violation fast; empty: those of Config.Args.
	Find []string
	// Test names a package's folder and a pattern of its tests, for a mutant of code that the simulator does not run:
	// one of these tests has to fail. Empty: the simulator has to find it.
	Test []string
	// Covered says which other rule prevents all harm, so that there is no counterexample;
	// empty for a mutant that has to be caught.
	Covered string
	Edits   []Edit
}

// Kind is where a mutant comes from.
type Kind string

// The kinds of mutants.
const (
	Necessary Kind = "necessary" // a rule that the design marks [n]
	Rule      Kind = "rule"      // another rule of the design, or of the code
	Defect    Kind = "defect"    // a known defect of an earlier system
	Plain     Kind = "plain"     // the proposals without what the design adds
)

var kinds = []Kind{Necessary, Rule, Defect, Plain}

// Edit replaces a piece of one source file.
type Edit struct {
	// File is the source's path in the module, with slashes.
	File string
	// Old and New are whole lines. Old occurs exactly once.
	Old, New string
}

// ErrOutdated means that a mutant no longer applies because the sources have changed: the rule has moved, and the
// mutant has to be rewritten.
var ErrOutdated = errors.New("does not apply any more")

//go:embed testdata/*.txtar
var archives embed.FS

// All returns every mutant, by kind and name.
func All() ([]Mutant, error) {
	files, err := archives.ReadDir("testdata")
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, f := range files {
		data, err := archives.ReadFile(path.Join("testdata", f.Name()))
		if err != nil {
			return nil, err
		}
		m, err := Parse(strings.TrimSuffix(f.Name(), ".txtar"), data)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Mutant) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Parse reads a mutant from its archive.
func Parse(name string, data []byte) (Mutant, error) {
	archive := txtar.Parse(data)
	m := Mutant{Name: name}
	if err := m.head(string(archive.Comment)); err != nil {
		return Mutant{}, fmt.Errorf("mutant %s: %w", name, err)
	}
	for files := archive.Files; len(files) > 0; files = files[2:] {
		if len(files) < 2 || files[1].Name != "becomes" {
			return Mutant{}, fmt.Errorf("mutant %s: %q is not followed by \"becomes\"", name, files[0].Name)
		}
		m.Edits = append(m.Edits, Edit{File: files[0].Name, Old: string(files[0].Data), New: string(files[1].Data)})
	}
	switch {
	case !slices.Contains(kinds, m.Kind):
		return Mutant{}, fmt.Errorf("mutant %s: its kind is %q, not one of %v", name, m.Kind, kinds)
	case m.Rule == "" || m.Section == "" || m.Schedule == "":
		return Mutant{}, fmt.Errorf("mutant %s: it has to name its rule, section and schedule", name)
	case len(m.Edits) == 0:
		return Mutant{}, fmt.Errorf("mutant %s: it changes nothing", name)
	}
	return m, nil
}

// head reads the lines above the first file.
func (m *Mutant) head(comment string) error {
	comment = strings.ReplaceAll(strings.TrimSpace(comment), "\n ", " ")
	for line := range strings.Lines(comment) {
		key, text, ok := strings.Cut(strings.TrimSpace(line), ":")
		text = strings.Join(strings.Fields(text), " ")
		if !ok || text == "" {
			return fmt.Errorf("%q is not \"key: value\"", line)
		}
		switch key {
		case "kind":
			m.Kind = Kind(text)
		case "rule":
			m.Rule = text
		case "section":
			m.Section = text
		case "schedule":
			m.Schedule = text
		case "violates":
			m.Violates = strings.Fields(text)
		case "find":
			m.Find = strings.Fields(text)
		case "test":
			if m.Test = strings.Fields(text); len(m.Test) != 2 {
				return fmt.Errorf("%q is not a folder and a pattern of tests", text)
			}
		case "covered":
			m.Covered = text
		default:
			return fmt.Errorf("unknown key %q", key)
		}
	}
	return nil
}

// Files returns the sources that the mutant changes, sorted.
func (m Mutant) Files() []string {
	var files []string
	for _, e := range m.Edits {
		files = append(files, e.File)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Apply returns the changed sources of the module at root, by their paths in it. The
// error wraps ErrOutdated if the sources are not as the mutant expects them.
func (m Mutant) Apply(root string) (map[string][]byte, error) {
	sources := map[string][]byte{}
	for _, e := range m.Edits {
		source, ok := sources[e.File]
		if !ok {
			var err error
			if source, err = read(root, e.File); err != nil {
				return nil, fmt.Errorf("mutant %s %w: %w", m.Name, ErrOutdated, err)
			}
		}
		patched, err := e.apply(source)
		if err != nil {
			return nil, fmt.Errorf("mutant %s %w: %s: %w", m.Name, ErrOutdated, e.File, err)
		}
		sources[e.File] = patched
	}
	return sources, nil
}

func read(root, file string) ([]byte, error) {
	return os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
}

func (e Edit) apply(source []byte) ([]byte, error) {
	source, old := append([]byte("\n"), source...), []byte("\n"+e.Old)
	switch n := bytes.Count(source, old); {
	case e.Old == "" || e.Old == e.New:
		return nil, errors.New("the edit changes nothing")
	case n != 1:
		first, _, _ := strings.Cut(strings.TrimSpace(e.Old), "\n")
		return nil, fmt.Errorf("the lines from %q on occur %d times and not once", first, n)
	}
	return bytes.Replace(source, old, []byte("\n"+e.New), 1)[1:], nil
}
