package mutant

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A simulator in small: it looks for a rule that is not kept, if it is asked to look hard.
const miniature = `package main

import (
	"fmt"
	"os"
)

const (
	fenced = true
	hidden = true
	needed = true
	broken = false
)

func main() {
	fmt.Println("100 schedules, 1,000 events")
	hard := len(os.Args) > 1 && os.Args[1] == "hard"
	switch {
	case broken:
		panic("no answer")
	case !fenced, !hidden && hard:
		fmt.Println("violation of I3: a put in v1")
		os.Exit(2)
	}
}
`

func TestRun(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/sim\n\ngo 1.26\n", "sim/main.go": miniature} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(old, becomes string) []Edit {
		return []Edit{{File: "sim/main.go", Old: "\t" + old + "\n", New: "\t" + becomes + "\n"}}
	}
	mutants := []Mutant{
		{Name: "easy", Edits: edit("fenced = true", "fenced = false"), Violates: []string{"I2", "I3"}},
		{Name: "another", Edits: edit("fenced = true", "fenced = false"), Violates: []string{"I2"}},
		{Name: "hinted", Edits: edit("hidden = true", "hidden = false"), Find: []string{"hard", "hint"}},
		{Name: "harmless", Edits: edit("needed = true", "needed = false")},
		{Name: "documented", Edits: edit("needed = true", "needed = false"), Covered: "by another rule"},
		{Name: "wrongly-documented", Edits: edit("hidden = true", "hidden = false"), Covered: "by another rule"},
		{Name: "crash", Edits: edit("broken = false", "broken = true")},
		{Name: "outdated", Edits: edit("gone = false", "gone = true")},
		{Name: "no-go", Edits: edit("broken = false", "broken = 1 +")},
	}
	var told []string
	outcomes, err := Run(t.Context(), Config{
		Root: root, Package: "sim", Budgets: [][]string{{"easy"}, {"hard"}}, Parallel: 2,
		Done: func(o Outcome) { told = append(told, o.Mutant.Name) },
	}, mutants)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"caught by I3 with easy after 100 schedules",
		"WRONG: violates I3, not I2",
		"caught by I3 with hard hint after 100 schedules",
		"WRONG: not caught",
		"silent after 200 schedules",
		"WRONG: caught, although it is said to do no harm: by another rule",
		"WRONG: concord-sim easy: exit status 2: panic: no answer",
		"WRONG: mutant outdated does not apply any more",
		"WRONG: go build: exit status 1",
		"silent after 300 schedules", // the control: easy, hard, and the hint
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
}

// TestControl has a simulator refused that finds something without any mutant.
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
