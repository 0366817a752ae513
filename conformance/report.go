package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// outcome is the result of a spec on one control plane.
type outcome struct {
	// ran says whether the spec was started at all, and not left out by the flags or the list
	// of skipped specs.
	ran    bool
	passed bool
	// pending says that the suite itself leaves it out.
	pending bool
	// attempts is how often it was started.
	attempts int
	// skippedItself says why a spec that was started has skipped itself.
	skippedItself string
	// message and place are those of a failure.
	message, place string
}

// outcomes has the outcome of each spec by its name.
type outcomes map[string]outcome

func (o outcomes) names() []string {
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// report is the part of ginkgo's report of a run that is read here.
type report struct{ SpecReports []specReport }

type specReport struct {
	ContainerHierarchyTexts           []string
	LeafNodeText, LeafNodeType, State string
	NumAttempts                       int
	Failure                           struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
}

func readReport(path string) (outcomes, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reports []report
	if err := json.Unmarshal(raw, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	result := outcomes{}
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			switch {
			case spec.LeafNodeType == "It":
				result.add(spec)
			case spec.failed():
				return nil, fmt.Errorf("%s: %s of the suite: %s: %s", path, spec.LeafNodeType, spec.State, firstLine(spec.Failure.Message))
			}
		}
	}
	if len(result) == 0 {
		return nil, fmt.Errorf("%s: no spec is in it", path)
	}
	return result, nil
}

// failed says whether a spec was run and went wrong, which it also did if it was interrupted.
func (s specReport) failed() bool {
	return s.State != "passed" && s.State != "skipped" && s.State != "pending"
}

// add adds the outcome of a spec. If two specs have the same name, both have to pass.
func (o outcomes) add(spec specReport) {
	name := strings.Join(strings.Fields(strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")), " ")
	next := outcome{
		passed: spec.State == "passed", attempts: spec.NumAttempts,
		pending: spec.State == "pending",
		ran:     spec.State != "pending" && (spec.State != "skipped" || spec.NumAttempts > 0),
	}
	switch {
	case spec.failed():
		next.message = firstLine(spec.Failure.Message)
		next.place = fmt.Sprintf("%s:%d", spec.Failure.Location.FileName, spec.Failure.Location.LineNumber)
	case next.ran && !next.passed:
		next.skippedItself = firstLine(spec.Failure.Message)
	}
	if before, ok := o[name]; ok && before.ran && !before.passed {
		return
	}
	o[name] = next
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
