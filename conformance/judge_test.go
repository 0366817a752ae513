package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRule has a spec with each combination of outcomes on stock and on ours.
func TestRule(t *testing.T) {
	passed, failed := outcome{ran: true, passed: true, attempts: 1}, outcome{ran: true, attempts: 2, message: "boom", place: "a.go:1"}
	itself, pending := outcome{ran: true, skippedItself: "only for gce"}, outcome{pending: true}
	for name, c := range map[string]struct {
		stock, ours outcome
		reason      string
		want        []string // the complaints
	}{
		"passes on both":               {passed, passed, "", nil},
		"fails on ours":                {passed, failed, "", []string{"server: spec: failed: boom (a.go:1)"}},
		"fails on stock":               {failed, passed, "", []string{"stock: spec: failed: boom (a.go:1)"}},
		"skips itself on both":         {itself, itself, "", nil},
		"skips itself on ours":         {passed, itself, "", []string{"server: spec: passed on stock, not for this cluster: only for gce"}},
		"was not run on ours":          {passed, outcome{}, "", []string{"server: spec: passed on stock, not run"}},
		"was not run for a reason":     {passed, outcome{}, "no pods", nil},
		"was lost on stock":            {outcome{}, passed, "", []string{"stock: spec: not run, and no reason is listed"}},
		"was lost on both":             {outcome{}, outcome{}, "", []string{"stock: spec: not run, and no reason is listed", "server: spec: not run, and no reason is listed"}},
		"is pending":                   {pending, pending, "", nil},
		"is listed for ours, and lost": {outcome{}, outcome{}, "no pods", []string{"stock: spec: not run, and no reason is listed"}},
	} {
		t.Run(name, func(t *testing.T) {
			list := &skipList{}
			if c.reason != "" {
				list.entries = []skip{{plane: alone, name: "spec", reason: c.reason}}
			}
			if broken := judge([]string{"spec"}, list, map[string]outcomes{stock: {"spec": c.stock}, alone: {"spec": c.ours}}).broken; !slices.Equal(broken, c.want) {
				t.Errorf("complaints %q, want %q", broken, c.want)
			}
		})
	}
	if broken := judge(nil, &skipList{}, map[string]outcomes{alone: {}}).broken; len(broken) != 1 {
		t.Errorf("without stock: complaints %q", broken)
	}
}

func TestSkipList(t *testing.T) {
	for text, want := range map[string]string{
		"== all: needs nodes\nA\n\n# why not\n== server: needs pods\nB": "",
		"A":                               `:1: a line`,
		"== everywhere: no":               `no plane "everywhere"`,
		"== all":                          "names no reason",
		"== all: r\nC":                    `no spec "C"`,
		"== all: r\nA\n== server: r\nA":   `"A" stands there twice`,
		"== stock: r\nA\n== server: r\nA": "",
	} {
		path := filepath.Join(t.TempDir(), "skipped.txt")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := readSkipped(path)
		if err == nil {
			err = list.check([]string{"A", "B"})
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestReport reads what ginkgo writes.
func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), reportName)
	write := func(specs string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(`[{"SpecReports": [`+specs+`]}]`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig-auth] A", "b  c"], "LeafNodeText": "passes", "LeafNodeType": "It", "State": "passed", "NumAttempts": 2},
		{"ContainerHierarchyTexts": null, "LeafNodeText": "fails", "LeafNodeType": "It", "State": "timedout", "NumAttempts": 1, "Failure": {"Message": "late\nvery", "Location": {"FileName": "a.go", "LineNumber": 7}}},
		{"ContainerHierarchyTexts": null, "LeafNodeText": "says no", "LeafNodeType": "It", "State": "skipped", "NumAttempts": 1, "Failure": {"Message": "no nodes"}},
		{"ContainerHierarchyTexts": null, "LeafNodeText": "left", "LeafNodeType": "It", "State": "skipped", "NumAttempts": 0},
		{"ContainerHierarchyTexts": null, "LeafNodeText": "not yet", "LeafNodeType": "It", "State": "pending", "NumAttempts": 0}`)
	got, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]outcome{
		"[sig-auth] A b c passes": {ran: true, passed: true, attempts: 2},
		"fails":                   {ran: true, attempts: 1, message: "late", place: "a.go:7"},
		"says no":                 {ran: true, attempts: 1, skippedItself: "no nodes"},
		"left":                    {},
		"not yet":                 {pending: true},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	write(`{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no cluster"}}`)
	if _, err := readReport(path); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("suite that did not begin: %v", err)
	}
}

// TestItself lists specs that skip themselves by what they say, and where.
func TestItself(t *testing.T) {
	gce, nodes := outcome{ran: true, skippedItself: "only for gce"}, outcome{ran: true, skippedItself: "no nodes"}
	begins := strings.Repeat("x", reasonLength)
	v := judge([]string{"A", "B", "C", "D", "E"}, &skipList{}, map[string]outcomes{
		stock: {"A": gce, "B": nodes, "C": gce, "D": {ran: true, passed: true}, "E": {ran: true, skippedItself: begins + "1"}},
		alone: {"A": gce, "B": gce, "C": gce, "D": {ran: true, passed: true}, "E": {ran: true, skippedItself: begins + "2"}},
	})
	_, got, _ := strings.Cut(v.itself(), "\n")
	if want := "\n== server: only for gce\nB\n\n== stock, server: only for gce\nA\nC\n\n== stock, server: " + begins + "\nE\n\n== stock: no nodes\nB\n"; got != want {
		t.Errorf("list %q, want %q", got, want)
	}
}
