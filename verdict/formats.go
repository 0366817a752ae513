package verdict

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/concord-dev/concord/compat"
)

// Formats are the formats that Write can write.
var Formats = []string{"text", "json", "junit", "sarif"}

// Write writes the report in one of Formats: text for people, json, or the formats of CI
// systems, junit (XML) and sarif (2.1.0). With all, text lists the safe findings, too, as the
// other formats always do.
func (r Report) Write(out io.Writer, format string, all bool) error {
	switch format {
	case "text":
		_, err := io.WriteString(out, r.Text(all))
		return err
	case "json":
		return writeJSON(out, r)
	case "junit":
		return r.junit(out)
	case "sarif":
		return writeJSON(out, r.sarif())
	}
	return fmt.Errorf("-o %s: allowed are %s", format, strings.Join(Formats, ", "))
}

func writeJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
	Output   string      `xml:"system-out,omitempty"`
}

type junitCase struct {
	Name    string      `xml:"name,attr"`
	Class   string      `xml:"classname,attr"`
	Failure *junitFault `xml:"failure,omitempty"`
	Error   *junitFault `xml:"error,omitempty"`
}

type junitFault struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit writes a test case for each resource: a failure if it is unsafe, an error if that is unknown.
func (r Report) junit(out io.Writer) error {
	suite := junitSuite{Name: "concord preflight: " + r.Target, Tests: len(r.Resources)}
	for _, f := range r.Resources {
		c := junitCase{Name: f.Resource, Class: "concord.preflight"}
		fault := &junitFault{Message: f.Reason, Text: strings.Join([]string{"stored as " + strings.Join(f.Stored, ", "), whichOf(f), r.Do}, "\n")}
		switch f.Verdict {
		case compat.Unsafe:
			suite.Failures++
			c.Failure = fault
		case compat.CouldNotTell:
			suite.Errors++
			c.Error = fault
		case compat.Safe:
		}
		suite.Cases = append(suite.Cases, c)
	}
	suite.Output = strings.TrimPrefix(r.warned(), "\n")
	if line := r.unread(); line != "" {
		suite.Output = wrapped("", line) + suite.Output
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(out)
	encoder.Indent("", "  ")
	if err := encoder.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}

// The part of SARIF 2.1.0 that is used.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations,omitempty"`
		Results     []sarifResult     `json:"results"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Notifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level   string    `json:"level"`
		Message sarifText `json:"message"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID   string    `json:"id"`
		Text sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Logical []sarifLogical `json:"logicalLocations"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

// sarif returns a result for each resource that is not safe, and a note for each warning. The number of unchecked
// resources is a property of the run.
func (r Report) sarif() sarifLog {
	run := sarifRun{Results: []sarifResult{}, Tool: sarifTool{Driver: sarifDriver{Name: "concord preflight", Rules: []sarifRule{
		{ID: "written-anew", Text: sarifText{"An object stays readable, and is not taken when it is written anew"}},
		{ID: "unsafe", Text: sarifText{"Stored objects would become unreadable"}},
		{ID: "could-not-tell", Text: sarifText{"Nobody can tell whether every stored object could be read"}},
	}}}}
	if line := r.unread(); line != "" {
		run.Invocations = []sarifInvocation{{Successful: true, Notifications: []sarifNotification{{Level: "note", Message: sarifText{line}}}}}
	}
	for _, f := range r.Resources {
		result := sarifResult{RuleID: "unsafe", Level: "error", Locations: []sarifLocation{{Logical: []sarifLogical{{Name: f.Resource, Kind: "resource"}}}}}
		switch f.Verdict {
		case compat.Safe:
			continue
		case compat.CouldNotTell:
			result.RuleID, result.Level = "could-not-tell", "warning"
		case compat.Unsafe:
		}
		result.Message.Text = strings.TrimRight(fmt.Sprintf("%s, for %s: %s. %s", f.Resource, r.Target, f.Reason, whichOf(f)), " ")
		run.Results = append(run.Results, result)
	}
	for _, w := range r.Warnings {
		run.Results = append(run.Results, sarifResult{RuleID: "written-anew", Level: "note",
			Message:   sarifText{fmt.Sprintf("%s %s, for %s: %s", w.Resource, w.Object, r.Target, w.About)},
			Locations: []sarifLocation{{Logical: []sarifLogical{{Name: w.Resource + " " + w.Object, Kind: "object"}}}}})
	}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}
