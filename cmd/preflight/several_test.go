package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// asked is the report that the command prints, its exit code and its error.
type asked struct {
	Target, Verdict string
	Resources       []struct{ Resource, Verdict, Reason string }
	code            int
	err             error
}

// ask runs the command on a cluster with this content.
func ask(t *testing.T, world World, args ...string) (a asked) {
	t.Helper()
	cmd := NewCommand(Config{Program: "kubectl concord", Lifecycles: verdict.Lifecycles, Etcd: func(context.Context) (func(context.Context, []schema.GroupResource) (*World, error), error) {
		return func(context.Context, []schema.GroupResource) (*World, error) { return &world, nil }, nil
	}})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append(args, "-o", "json"))
	a.err = cmd.ExecuteContext(t.Context())
	var coded program.No
	if out.Len() > 0 {
		must(t, json.Unmarshal(out.Bytes(), &a))
	}
	switch {
	case errors.As(a.err, &coded):
		a.code = coded.ExitCode()
	case a.err != nil:
		a.code = 1
	}
	return a
}

// written writes the files to a new directory.
func written(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	return dir
}

// TestWrongInputs: for a directory or a packed chart, the error says by which commands its definitions are judged.
func TestWrongInputs(t *testing.T) {
	t.Chdir(written(t, map[string]string{"dir/a.yaml": manifest("v1"), "c.tgz": "\x1f\x8b\x08"}))
	for _, file := range []string{"dir", "c.tgz"} {
		const judge = " | kubectl concord preflight --crd -"
		got := ask(t, World{}, "--crd", file)
		if got.code != 1 || !strings.Contains(got.err.Error(), "helm template --include-crds "+file+judge) || !strings.Contains(got.err.Error(), "kubectl kustomize "+file+judge) {
			t.Errorf("%s: exit %d of %q", file, got.code, got.err)
		}
	}
}

// TestSeveral: all of several files are judged, in whatever order, and the worst verdict counts. If two of them
// have one definition, the second is judged as if it were applied after the first.
func TestSeveral(t *testing.T) {
	widgets, gearsResource := schema.GroupResource{Group: "example.com", Resource: "widgets"}, schema.GroupResource{Group: "example.com", Resource: "gears"}
	stored := func(gr schema.GroupResource) compat.Stored {
		return compat.Stored{Resource: gr, Census: &compat.StoredCensus{Objects: map[string]int64{"example.com/v1": 3}}}
	}
	world := World{Stored: []compat.Stored{stored(widgets), stored(gearsResource)}, Definitions: map[schema.GroupResource]*verdict.Definition{}}
	for _, gr := range []schema.GroupResource{widgets, gearsResource} {
		world.Definitions[gr] = &verdict.Definition{Resource: gr, Versions: []string{"v1"}, Storage: "v1", StoredVersions: []string{"v1"}}
	}
	dir := written(t, map[string]string{
		"bad.yaml": manifest("v2"), "both.yaml": manifest("v1", "v2"), "old.yaml": manifest("v1"), "gears.yaml": gears("v1", "v2"), "new.yaml": strings.ReplaceAll(manifest("v1", "v2"), "widget", "wheel"),
		"newer.yaml": strings.ReplaceAll(manifest("v3"), "widget", "wheel"),
	})
	for name, test := range map[string]struct {
		args   []string
		code   int
		found  int
		reason string // of the first resource
	}{
		"the first is unsafe":                    {[]string{"--crd=bad.yaml", "--crd=gears.yaml"}, 2, 2, "it drops example.com/v1, in which objects are stored (3)"},
		"the last is unsafe":                     {[]string{"--crd=gears.yaml", "--crd=bad.yaml"}, 2, 2, "it drops example.com/v1, in which objects are stored (3)"},
		"both are safe":                          {[]string{"--crd=both.yaml", "--crd=gears.yaml"}, 0, 2, "it keeps every version that is stored"},
		"twice the same":                         {[]string{"--crd=both.yaml", "--crd=both.yaml"}, 0, 1, "it keeps"},
		"two forms, both safe":                   {[]string{"--crd=old.yaml", "--crd=both.yaml"}, 0, 2, "it keeps"},
		"two forms, the first is not":            {[]string{"--crd=bad.yaml", "--crd=both.yaml"}, 2, 2, "it drops example.com/v1"},
		"the second drops what the first stores": {[]string{"--crd=both.yaml", "--crd=old.yaml"}, 2, 2, "it drops v2, which the definition before it stores: the API server refuses it"},
		"the same of a new one":                  {[]string{"--crd=new.yaml", "--crd=newer.yaml"}, 2, 2, "it drops v2, which the definition before it stores"},
	} {
		for i, arg := range test.args {
			flag, file, _ := strings.Cut(arg, "=")
			test.args[i] = flag + "=" + filepath.Join(dir, file)
		}
		got := ask(t, world, test.args...)
		if got.code != test.code || len(got.Resources) != test.found || !strings.HasPrefix(got.Resources[0].Reason, test.reason) {
			t.Errorf("%s: exit %d of %+v: %v", name, got.code, got.Resources, got.err)
		}
	}
	if got := ask(t, world, "--crd", filepath.Join(dir, "gears.yaml"), "--crd", "none.yaml"); got.code != 1 || got.Verdict != "" || !strings.Contains(got.err.Error(), "open none.yaml") {
		t.Errorf("a file that is not there: exit %d of %+v: %v", got.code, got.Resources, got.err)
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
