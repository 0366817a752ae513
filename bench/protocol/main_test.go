package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// TestMain lets the test binary be the servers that a benchmark starts.
func TestMain(m *testing.M) {
	stage.Child()
	os.Exit(m.Run())
}

// TestSmallestMeasurement runs the benchmark from end to end, with the measurement that
// takes the least time and does not depend on how fast the machine is.
func TestSmallestMeasurement(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("open files are counted in /proc")
	}
	t.Setenv("TMPDIR", t.TempDir())
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-quick", "-only", "descriptors", "-o", "json"}, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var found document
	if err := json.Unmarshal(stdout.Bytes(), &found); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	i := slices.IndexFunc(found.Figures, func(f figures.Row) bool { return strings.HasPrefix(f.Figure, "etcd connections") })
	if i < 0 {
		t.Fatalf("no etcd connections among %+v", found.Figures)
	}
	// Upstream opens one client for each resource.
	row := found.Figures[i]
	if row.Beside == nil || row.Value != 1 || row.Verdict != "PASS" || row.Beside.Value < float64(small.usedCRDs) {
		t.Errorf("etcd connections: %+v beside %+v", row, row.Beside)
	}
	if !strings.Contains(stderr.String(), "| etcd connections") {
		t.Errorf("the table is not on stderr: %s", stderr.String())
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestArguments(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "latency,nothing"}, "-only nothing: there are latency, start"},
		{[]string{"-o", "yaml"}, "only json is known"},
		{[]string{"latency"}, `unexpected argument "latency"`},
		{[]string{"-objects", "5"}, "at least"},
	} {
		if _, err := parse(test.args, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %q", test.args, err, test.want)
		}
	}
	o, err := parse([]string{"-only", "rewrite,latency", "-quick", "-objects", "1234"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.chosen) != 2 || o.chosen[0].name != "latency" || o.size.objects != 1234 || o.size.writes != small.writes {
		t.Errorf("got %+v", o)
	}
	if o, err := parse(nil, io.Discard); err != nil || len(o.chosen) != len(measures) || o.size != full {
		t.Errorf("without arguments: %+v, %v", o, err)
	}
}
