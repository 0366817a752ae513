package mutant

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Select returns the mutants of these names, in the order of all; no names mean all.
func Select(all []Mutant, names []string) ([]Mutant, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Mutant
	for _, m := range all {
		if slices.Contains(names, m.Name) {
			chosen = append(chosen, m)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(chosen, func(m Mutant) bool { return m.Name == name }) {
			return nil, fmt.Errorf("there is no mutant %q; the mutants are %s", name, strings.Join(namesOf(all), ", "))
		}
	}
	return chosen, nil
}

func namesOf(all []Mutant) []string {
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

// Check runs mutants and prints a line for each. It returns true if every mutant is caught, or silent where it is
// declared to be harmless, and the simulator without a mutant finds nothing.
func Check(ctx context.Context, cfg Config, mutants []Mutant, out io.Writer) (bool, error) {
	begun := time.Now()
	n := 0
	cfg.Done = func(o Outcome) {
		n++
		fmt.Fprintf(out, "%3d/%d %s\n", n, len(mutants)+1, o)
		if cfg.Verbose && o.Mutant.Name != "" {
			fmt.Fprintf(out, "  without: %s (%s)\n  so that: %s\n", o.Mutant.Rule, o.Mutant.Section, o.Mutant.Schedule)
		}
		if cfg.Verbose && o.Violation != nil {
			fmt.Fprintf(out, "  %s\n", o.Violation.Line)
		}
	}
	outcomes, err := Run(ctx, cfg, mutants)
	if err != nil {
		return false, err
	}
	var wrong []string
	caught, covered := 0, 0
	var schedules int64
	for _, o := range outcomes {
		schedules += o.Schedules
		switch _, bad := o.Wrong(); {
		case bad && o.Mutant.Name == "":
			wrong = append(wrong, "the control")
		case bad:
			wrong = append(wrong, o.Mutant.Name)
		case o.Violation != nil:
			caught++
		case o.Mutant.Covered != "":
			covered++
		}
	}
	fmt.Fprintf(out, "%d of %d mutants caught, %d silent for a reason, %d wrong: %d schedules in %s\n",
		caught, len(mutants), covered, len(wrong), schedules, time.Since(begun).Round(time.Second))
	if len(wrong) > 0 {
		fmt.Fprintf(out, "wrong: %s\n", strings.Join(wrong, ", "))
	}
	return len(wrong) == 0, nil
}
