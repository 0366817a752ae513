package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// skipList says which specs are not run, and why.
type skipList struct {
	entries []skip
}

type skip struct {
	// plane is the only control plane on which the spec is not run; empty: it is not run on any.
	plane        string
	name, reason string
}

// readSkipped reads a list of specs that are not run. It has sections: a line "== <plane or
// all>: <reason>" and the full names of the specs, one on a line. Empty lines and those that
// begin with # are ignored.
func readSkipped(path string) (*skipList, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("specs that are not run: %w", err)
	}
	defer func() { _ = file.Close() }()
	list := &skipList{}
	var section skip
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if head, ok := strings.CutPrefix(line, "== "); ok {
			if section, err = parseSection(head); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, err)
			}
			continue
		}
		if section.reason == "" {
			return nil, fmt.Errorf("%s:%d: a line \"== <plane>: <reason>\" has to stand before names", path, number)
		}
		section.name = line
		list.entries = append(list.entries, section)
	}
	return list, lines.Err()
}

func parseSection(head string) (skip, error) {
	plane, reason, ok := strings.Cut(head, ": ")
	switch {
	case !ok || reason == "":
		return skip{}, fmt.Errorf("%q names no reason", head)
	case plane == "all":
		return skip{reason: reason}, nil
	case !slices.Contains(planes, plane):
		return skip{}, fmt.Errorf("there is no plane %q", plane)
	}
	return skip{plane: plane, reason: reason}, nil
}

// check refuses names that no spec has, and names that are listed twice for one control plane.
func (l *skipList) check(all []string) error {
	seen := map[string]string{}
	for _, e := range l.entries {
		if _, ok := slices.BinarySearch(all, e.name); !ok {
			return fmt.Errorf("the suite has no spec %q: take it out", e.name)
		}
		if before, ok := seen[e.name]; ok && (before == e.plane || before == "" || e.plane == "") {
			return fmt.Errorf("%q stands there twice", e.name)
		}
		seen[e.name] = e.plane
	}
	return nil
}

// rest returns the specs that are run on a control plane.
func (l *skipList) rest(all []string, plane string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return l.reason(plane, name) != "" })
}

// reason says why a spec is not run on a control plane; empty if it is run.
func (l *skipList) reason(plane, name string) string {
	for _, e := range l.entries {
		if e.name == name && (e.plane == "" || e.plane == plane) {
			return e.reason
		}
	}
	return ""
}
