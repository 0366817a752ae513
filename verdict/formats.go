package verdict

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/concord-dev/concord/compat"
)

// Formats are the formats that Write can write.
var Formats = []string{"text", "json", "sarif"}

// Write writes the report in one of Formats: text for people, json, or sarif (2.1.0), which CI systems show. With all,
// text lists the safe findings, too, as json always does.
func (r Report) Write(out io.Writer, format string, all bool) error {
	switch format {
	case "text":
		_, err := io.WriteString(out, r.Text(all))
		return err
	case "json":
		return writeJSON(out, r)
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
