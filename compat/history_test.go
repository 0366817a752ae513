package compat

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// KEP-4330, "Feature Gate Lifecycles": gating and tracking "must remain in code through" a release "for emulation version support range".
func TestRemovable(t *testing.T) {
	for _, c := range []struct{ history, from string }{
		// "must remain in code through 1.30 [...] 1.31: if featureGate enabled { // implement feature } code may be removed at this step"
		{"1.26 alpha off, 1.27 beta on, 1.28 stable on", "1.31"},
		// The KEP says 1.33; see TestFeatureLifecycleTables.
		{"1.26 beta off, 1.27 deprecated off, 1.31 removed", "1.34"},
		// "Features that are deleted before reaching Beta do not require emulation version support".
		{"1.26 alpha off", "1.26"},
		{"1.26 alpha off, 1.30 alpha on", "1.26"},
		{"1.26 beta on, 1.30 deprecated off locked", "1.33"},
		{"1.26 beta on, 1.30 stable on locked", "1.33"},
		{"1.26 beta off, 1.30 beta on min=1.30, 1.32 stable on", "1.35"},
	} {
		from := version.MustParseMajorMinor(c.from)
		phases := history(t, c.history)
		for _, binary := range releases(phases[len(phases)-1].Since, version.MustParse("1.40")) {
			if got, want := Removable(phases, binary), binary.AtLeast(from); got != want {
				t.Errorf("%s: removable at %s: %t, want %t", c.history, binary, got, want)
			}
		}
	}
	if Removable(history(t, "1.26 beta on"), version.MustParse("1.90")) {
		t.Error("a beta feature is removable")
	}
}

func TestCheckHistories(t *testing.T) {
	const old = "1.34 alpha off, 1.36 beta on"
	for _, c := range []struct{ recorded, declared, want string }{ // "": no breach, else "rule: part of the detail"
		{old, old, ""},
		{old, "1.34 alpha off, 1.35 beta on", `append-only: "1.36 beta default=true" was recorded and is now "1.35 beta default=true"`},
		{old, "1.34 alpha off, 1.36 beta off", `append-only: "1.36 beta default=true" was recorded and is now "1.36 beta default=false"`},
		{old, "1.34 alpha off, 1.36 beta on locked", `append-only: "1.36 beta default=true" was recorded and is now "1.36 beta default=true locked"`},
		{old, "1.34 alpha off, 1.36 beta on min=1.36", `append-only: "1.36 beta default=true" was recorded`},
		{old, "1.34 alpha off", `append-only: "1.36 beta default=true" was recorded and is gone`},
		{old, "1.36 beta on", `append-only: "1.34 alpha default=false" was recorded and is now`},
		{old, old + ", 1.37 stable on", `append-only: "1.37 stable default=true" is not recorded: add it to the table`},
		{old, old + ", 1.36 stable on", `append-only: "1.36 stable default=true" would change what 1.36 and later releases had: a new phase begins with 1.37 or later`},
		{"", old, `append-only: "1.34 alpha default=false" is not recorded`},
		{old + ", 1.37 alpha off", old + ", 1.37 alpha off", "maturing: beta goes back to alpha in 1.37"},
		{"1.34 stable on, 1.37 beta on", "1.34 stable on, 1.37 beta on", "maturing: stable goes back to beta in 1.37"},
		{"1.34 deprecated on, 1.37 stable on", "1.34 deprecated on, 1.37 stable on", "maturing: deprecated goes back to stable in 1.37"},
		{"1.34 beta on locked, 1.37 stable on", "1.34 beta on locked, 1.37 stable on", "maturing: it is unlocked again in 1.37"},
		{"1.37 beta on, 1.36 stable on", "1.37 beta on, 1.36 stable on", `maturing: "1.36 stable default=true" comes after "1.37 beta default=true"`},
		{"1.34 stable on, 1.36 deprecated on, 1.37 removed", "1.34 stable on, 1.36 deprecated on, 1.37 removed", ""},
		{old, "", "in-range: it is gone, but 1.37 can still emulate releases that have it as beta in 1.36, beta in 1.37"},
		{"1.30 beta on, 1.35 stable on", "", "in-range: it is gone, but 1.37 can still emulate releases that have it as beta in 1.34"},
		{"1.30 beta on, 1.34 stable on", "", ""},
		{"1.30 alpha off", "", ""},
	} {
		table := func(s string) map[string][]Phase {
			if s == "" {
				return nil
			}
			return map[string][]Phase{"A": history(t, s)}
		}
		var got []string
		for _, b := range CheckHistories(table(c.recorded), table(c.declared), BinaryVersion()) {
			if !strings.HasPrefix(b.String(), fmt.Sprintf("feature A breaks the rule %s: ", b.Rule)) {
				t.Errorf("%q does not name feature and rule", b)
			}
			got = append(got, fmt.Sprintf("%s: %s", b.Rule, b.Detail))
		}
		ok := len(got) == 0
		if c.want != "" {
			ok = slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, c.want) })
		}
		if !ok {
			t.Errorf("recorded %q, declared %q: breaches %q, want %q", c.recorded, c.declared, got, c.want)
		}
	}
}

// Breaches come by feature, whichever map they are found in.
func TestBreachesAreSorted(t *testing.T) {
	recorded := map[string][]Phase{"B": history(t, "1.36 beta on"), "D": history(t, "1.36 beta on")}
	declared := map[string][]Phase{"A": history(t, "1.37 beta on"), "C": history(t, "1.37 beta on")}
	var names []string
	for _, b := range CheckHistories(recorded, declared, BinaryVersion()) {
		names = append(names, b.Feature)
	}
	if got := strings.Join(names, " "); got != "A B C D" {
		t.Errorf("breaches of %s", got)
	}
}

func TestParsePhase(t *testing.T) {
	for _, s := range []string{"1.36 beta default=true", "1.36 deprecated default=false locked", "1.37 stable default=true locked min-compatibility=1.36", "1.37 removed default=false", "1.37 beta default=true min-compatibility=1.37"} {
		if p, err := ParsePhase(s); err != nil || p.String() != s {
			t.Errorf("%q is read as %q (%v)", s, p, err)
		}
	}
	for _, s := range []string{"", "1.36", "1.36 beta", "new beta default=true", "1.36 gamma default=true", "1.36 beta default=maybe", "1.36 beta locked default=true", "1.36 beta default=true min-compatibility=x", "1.36 beta default=true locked locked"} {
		if p, err := ParsePhase(s); err == nil {
			t.Errorf("%q is read as %q", s, p)
		}
	}
}
