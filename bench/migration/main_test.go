package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// TestMain lets the test binary be the servers that a benchmark starts.
func TestMain(m *testing.M) {
	stage.Child()
	os.Exit(m.Run())
}

// TestSmallestRun runs the benchmark from end to end. The figures are worth nothing.
func TestSmallestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(t.TempDir(), "figures")
	var stdout, stderr bytes.Buffer
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		// The run ends 30 s before the test's deadline, so that its progress is printed.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-30*time.Second))
		defer cancel()
	}
	if err := run(ctx, []string{"-objects", "200", "-rounds", "1", "-samples", "100", "-rate", "20", "-idle", "2s", "-scale", "200,300", "-leg-rounds", "1", "-dir", dir, "-o", "json"}, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	// The document is decoded by its JSON keys, as its readers do it.
	var d struct {
		Results              []map[string]any
		Ratios               map[string]float64
		OpenLoop, ClosedLoop map[string]float64
	}
	if err := json.Unmarshal(stdout.Bytes(), &d); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	names := []string{"rewriteCR/raw", "rewriteBuiltin/raw", "rewriteCR/put", "rewriteCR/apply", "rewriteCRCaughtUp/put", "api/bestSequential", "noop/full", "p99Busy/p99Idle"}
	scaled := []string{"noop/full, 200 objects", "noop/full, 300 objects", "timePerObject highest/lowest"}
	if got, want := slices.Sorted(maps.Keys(d.Ratios)), slices.Sorted(slices.Values(append(names, scaled...))); !slices.Equal(got, want) {
		t.Errorf("ratios %q, want %q", got, want)
	}
	for name, ratio := range d.Ratios {
		if ratio <= 0 {
			t.Errorf("ratio %s is %v", name, ratio)
		}
	}
	for _, r := range d.Results {
		if keys := slices.Sorted(maps.Keys(r)); !slices.Equal(keys, []string{"name", "objects", "objectsPerSecond", "seconds"}) {
			t.Fatalf("a result has %q", keys)
		}
		if r["objects"].(float64) < 200 || r["seconds"].(float64) <= 0 || r["objectsPerSecond"].(float64) <= 0 {
			t.Errorf("result %+v", r)
		}
	}
	for name, load := range map[string]map[string]float64{"open": d.OpenLoop, "closed": d.ClosedLoop} {
		for _, field := range []string{"objectsPerSecond", "p99Ratio", "stockObjectsPerSecond", "stockP99Ratio"} {
			if load[field] <= 0 {
				t.Errorf("%s loop: %s is %v", name, field, load[field])
			}
		}
	}
	for file, want := range map[string]string{"migration.md": "| rewriteCR/raw"} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %s", file, err, text)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTargets: which rows have a target, and what it is.
func TestTargets(t *testing.T) {
	spans := []corpus.Span{corpus.Span{}.Of(1)}
	ways := corpus.Ways{Rewrite: spans, Raw: spans, Update: spans, Apply: spans, API: spans, Noop: spans}
	b := &bench{custom: ways, builtin: ways, yielding: spans, idle: []float64{1}, busy: []float64{1}}
	d := &document{Ratios: map[string]float64{}}
	d.addWays(b)
	d.addScale([]*scaled{{full: spans, noop: spans, raw: spans}, {full: spans, noop: spans, raw: spans}})
	got := map[string]figures.Target{}
	for _, row := range d.rows {
		if row.Target != nil {
			got[row.Figure] = *row.Target
		}
	}
	want := map[string]figures.Target{
		"rewriteCR/raw":                    *figures.RatioAtLeast(0.7),
		"rewriteBuiltin/raw":               *figures.RatioAtLeast(0.7),
		"rewriteCR/put":                    *figures.RatioAtLeast(50),
		"rewriteCR/apply":                  *figures.RatioAtLeast(50),
		"rewriteCRCaughtUp/put":            *figures.RatioAtLeast(35),
		"api/bestSequential":               *figures.RatioAtLeast(3),
		"noop/full":                        *figures.RatioAtLeast(5),
		"noop/full, 1 objects":             *figures.RatioAtLeast(5),
		"p99Busy/p99Idle":                  *figures.RatioAtMost(2),
		"timePerObject highest/lowest":     *figures.RatioAtMost(1.15),
		"extra resident memory, 1 objects": *figures.AtMost(200),
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-o", "yaml"}, {"-objects", "10"}, {"-servers", "0"}, {"-rounds", "0"}, {"-leg-rounds", "0"}, {"-samples", "1"}, {"-rate", "0"}, {"-idle", "0s"}, {"-nonsense"}, {"-scale", "x"}, {"-scale", "200,100"}, {"-only", "nothing"}, {"-only", "scale"}, {"-only", "loads", "-scale", "100"}} {
		if _, err := parse(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	o, err := parse([]string{"-objects", "150", "-o", "json"}, &bytes.Buffer{})
	if err != nil || o.objects != 150 || o.sampled != 150 || !o.json || o.servers != 1 {
		t.Errorf("got %+v, %v", o, err)
	}
}
