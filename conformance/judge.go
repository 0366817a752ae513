package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// verdict is the result of the runs of the control planes together.
type verdict struct {
	rows []row
	// counts has the counts of each control plane.
	counts map[string]*count
	judged []string // the planes that have results
	broken []string
}

// row is a spec that was run somewhere.
type row struct {
	name  string
	cells map[string]string // by plane
	// itself says by plane why the spec has skipped itself there.
	itself map[string]string
}

type count struct{ passed, again, failed, itself, left int }

// judge applies the rule: a spec that passes on stock passes on ours, unless the list of skipped
// specs says why it is not run there. A spec that fails on stock is no control, so it has to be listed,
// and so has one that no process of the suite has run.
func judge(names []string, skipped *skipList, results map[string]outcomes) *verdict {
	v := &verdict{counts: map[string]*count{}}
	for _, plane := range planes {
		if results[plane] != nil {
			v.judged = append(v.judged, plane)
			v.counts[plane] = &count{}
		}
	}
	if results[stock] == nil {
		v.broken = append(v.broken, stock+": it was not run, so there is no control")
	}
	for _, name := range names {
		r, ran := row{name: name, cells: map[string]string{}, itself: map[string]string{}}, false
		control := results[stock][name]
		for _, plane := range v.judged {
			o, reason := results[plane][name], skipped.reason(plane, name)
			ran = ran || o.ran
			r.cells[plane] = v.counts[plane].add(o, reason)
			if o.skippedItself != "" {
				r.itself[plane] = o.skippedItself
			}
			switch {
			case o.ran && !o.passed && o.skippedItself == "":
				v.broken = append(v.broken, fmt.Sprintf("%s: %s: failed: %s (%s)", plane, name, o.message, o.place))
			case plane != stock && control.passed && !o.passed && reason == "":
				v.broken = append(v.broken, fmt.Sprintf("%s: %s: passed on stock, %s", plane, name, r.cells[plane]))
			case !o.ran && !o.pending && reason == "":
				v.broken = append(v.broken, fmt.Sprintf("%s: %s: not run, and no reason is listed", plane, name))
			}
		}
		if ran {
			v.rows = append(v.rows, r)
		}
	}
	return v
}

// add counts an outcome and returns the word for it.
func (c *count) add(o outcome, reason string) string {
	switch {
	case o.passed && o.attempts > 1:
		c.passed++
		c.again++
		return "passed again"
	case o.passed:
		c.passed++
		return "passed"
	case o.skippedItself != "":
		c.itself++
		return "not for this cluster: " + o.skippedItself
	case o.ran:
		c.failed++
		return "**failed**"
	case reason != "":
		c.left++
		return "not run: " + reason
	case o.pending:
		return "pending"
	}
	return "not run"
}

// reasonLength bounds the reasons in the list of specs that have skipped themselves, in bytes.
const reasonLength = 100

// itself lists the specs that have skipped themselves, in sections of planes and a reason like those of
// the list of skipped specs.
func (v *verdict) itself() string {
	sections := map[string][]string{}
	for _, r := range v.rows {
		planes := map[string][]string{}
		for _, plane := range v.judged {
			if reason := r.itself[plane]; reason != "" {
				// Some list all API groups, which differ by server.
				reason = strings.TrimSpace(strings.ToValidUTF8(reason[:min(len(reason), reasonLength)], ""))
				planes[reason] = append(planes[reason], plane)
			}
		}
		for reason, names := range planes {
			head := strings.Join(names, ", ") + ": " + reason
			sections[head] = append(sections[head], r.name)
		}
	}
	var list strings.Builder
	list.WriteString("# Specs that were started and skipped themselves, by section: the planes and what they say.\n")
	for _, head := range slices.Sorted(maps.Keys(sections)) {
		fmt.Fprintf(&list, "\n== %s\n%s\n", head, strings.Join(sections[head], "\n"))
	}
	return list.String()
}

// publish writes the table by spec and the list of specs that have skipped themselves to files, and counts and
// breaches of the rule to out.
func (v *verdict) publish(out io.Writer, dir string) error {
	var table strings.Builder
	fmt.Fprintf(&table, "| spec | %s |\n|---|%s\n", strings.Join(v.judged, " | "), strings.Repeat("---|", len(v.judged)))
	for _, r := range v.rows {
		fmt.Fprintf(&table, "| %s |", strings.ReplaceAll(r.name, "|", `\|`))
		for _, plane := range v.judged {
			fmt.Fprintf(&table, " %s |", strings.ReplaceAll(r.cells[plane], "|", `\|`))
		}
		table.WriteByte('\n')
	}
	path := filepath.Join(dir, "table.md")
	if err := os.WriteFile(path, []byte(table.String()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "itself.txt"), []byte(v.itself()), 0o600); err != nil {
		return err
	}
	fmt.Fprint(out, "| control plane | passed | of them only the second time | failed | found by themselves not to apply | skipped by name |\n|---|---|---|---|---|---|\n")
	for _, plane := range v.judged {
		c := v.counts[plane]
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d | %d |\n", plane, c.passed, c.again, c.failed, c.itself, c.left)
	}
	fmt.Fprintf(out, "\nThe table by spec is in %s.\n", path)
	for _, line := range v.broken {
		fmt.Fprintln(out, line)
	}
	if len(v.broken) > 0 {
		return fmt.Errorf("%w: %d times", errRule, len(v.broken))
	}
	return nil
}
