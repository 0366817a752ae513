package mutant

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// miniature is a small simulator: it finds a rule that is not kept, if it has enough schedules.
const miniature = `package main

import (
	"fmt"
	"os"
)

func fenced() bool { return true }

func (m model) hidden(_ int, args ...string) (answer bool) {
	answer = m.honest
	return answer
}

type model struct{ honest bool }

func needed() bool { return true }

func crash() {
}

func main() {
	fmt.Println("100 schedules, 1,000 events")
	crash()
	_ = needed()
	hard := len(os.Args) > 1 && os.Args[1] == "hard"
	switch {
	case !fenced(), !(model{true}).hidden(1, os.Args...) && hard:
		fmt.Println("VIOLATION I3: a put in v1")
		os.Exit(2)
	}
}
`

func TestRun(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/sim\n\ngo 1.26\n", "sim/main.go": miniature} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o750))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	edit := func(old, becomes string) []Edit {
		return []Edit{{File: "sim/main.go", Old: old + "\n", New: becomes + "\n"}}
	}
	unfenced := edit("func fenced() bool { return true }", "func fenced() bool { return strings.ToLower(\"X\") == \"X\" }")
	unfenced = append(unfenced, edit("\t\"os\"", "\t\"os\"\n\t\"strings\"")...)
	open := edit("\treturn answer", "\treturn !answer")
	unneeded := edit("func needed() bool { return true }", "func needed() bool { return notNeeded }\n\nvar notNeeded bool")
	mutants := []Mutant{
		{Name: "easy", Edits: unfenced, Violates: []string{"I2", "I3"}},
		{Name: "another", Edits: unfenced, Violates: []string{"I2"}},
		{Name: "hinted", Edits: open, Find: []string{"hard", "hint"}},
		{Name: "harmless", Edits: edit("func needed() bool { return true }", "func needed() bool { return false }")},
		{Name: "documented", Edits: unneeded, Covered: "by another rule"},
		{Name: "wrongly-documented", Edits: open, Covered: "by another rule"},
		{Name: "crash", Edits: edit("func crash() {", "func crash() {\n\tpanic(\"no answer\")")},
	}
	var told []string
	cfg := Config{
		Root: root, Package: "sim", Budgets: [][]string{{"easy"}, {"hard"}}, Parallel: 2,
		Done: func(o Outcome) { told = append(told, o.Mutant.Name) },
	}
	outcomes, err := Run(t.Context(), cfg, mutants)
	must(t, err)
	for i, want := range []string{
		"caught by I3 with easy after 100 schedules",
		"WRONG: violates I3, not I2",
		"caught by I3 with hard hint after 100 schedules",
		"WRONG: not caught",
		"silent after 200 schedules",
		"WRONG: caught, although it is said to do no harm: by another rule",
		"WRONG: concord-sim easy: exit status 2: ",
		"silent after 300 schedules", // the lines before it are of the control, easy and hard
	} {
		if line := outcomes[i].String(); !strings.Contains(line, want) {
			t.Errorf("%s\nwanted: %s", line, want)
		}
		if _, wrong := outcomes[i].Wrong(); wrong != strings.Contains(want, "WRONG") {
			t.Errorf("wrong: %v\n%s", wrong, outcomes[i])
		}
	}
	slices.Sort(told)
	if len(slices.Compact(told)) != len(mutants)+1 {
		t.Errorf("told of %v", told)
	}
	for want, edits := range map[string][]Edit{
		"does not apply any more":                      edit("func gone() {", "func back() {"),
		"the mutants do not build":                     edit("func crash() {", "func crash() {\n\tpanic(nothing)"),
		"it changes a declaration that is no function": edit("type model struct{ honest bool }", "type model struct{ honest, more bool }"),
		"it has no function needed":                    edit("func needed() bool { return true }", "func wanted() bool { return true }"),
	} {
		if _, err := Run(t.Context(), cfg, []Mutant{{Name: "m", Edits: edits}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, wanted: %s", err, want)
		}
	}
}

// TestControl: a simulator that finds a violation without any mutant is refused.
func TestControl(t *testing.T) {
	o := Outcome{Violation: &Violation{Invariant: "I1"}}
	if why, wrong := o.Wrong(); !wrong {
		t.Errorf("a violation without a mutant passes: %s", why)
	}
}

func TestSelect(t *testing.T) {
	all := []Mutant{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	if got, err := Select(all, []string{"c", "a"}); err != nil || !slices.Equal(namesOf(got), []string{"a", "c"}) {
		t.Errorf("selected %v, %v", namesOf(got), err)
	}
	if _, err := Select(all, []string{"a", "d"}); err == nil || !strings.Contains(err.Error(), `"d"`) {
		t.Errorf("a mutant that does not exist: %v", err)
	}
}
