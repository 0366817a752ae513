package status_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/timeline"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// TestGolden renders what was observed, for each file of testdata: the status; a "why" for each file named why-<resource>, with the census in
// census-<resource> if there is one; and the rows and the timeline of a page, if there are files with these names. No line of text is longer than 80
// columns, unless it is one long word.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d stories, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { golden(t, file) })
	}
}

func golden(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string][]byte{}
	for _, f := range archive.Files {
		given[f.Name] = f.Data
	}
	var o status.Observed
	if err := yaml.UnmarshalStrict(given["observed.yaml"], &o); err != nil {
		t.Fatal(err)
	}
	style := status.Style{Width: 80}
	named(t, o, style)
	for i, f := range archive.Files {
		var got string
		switch {
		case f.Name == "status":
			got = status.Of(o).Text(style)
		case f.Name == "rows":
			for _, row := range status.Of(o).Rows {
				got += lineOf(row) + "\n"
			}
		case f.Name == "timeline":
			for _, m := range timeline.Of(o) {
				got += fmt.Sprintf("%s %s: %s\n", m.At.UTC().Format(time.TimeOnly), m.Kind, m.Text)
			}
		case strings.HasPrefix(f.Name, "why-"):
			got = why(t, o, strings.TrimPrefix(f.Name, "why-"), given, style)
		default:
			continue
		}
		for _, line := range strings.Split(got, "\n") {
			if len(line) > 80 && f.Name != "rows" && f.Name != "timeline" && !strings.HasPrefix(line, "      kubectl ") && !strings.HasPrefix(line, "nothing is known") {
				t.Errorf("%s has a line of %d columns: %s", f.Name, len(line), line)
			}
		}
		if *update {
			archive.Files[i].Data = []byte(got)
		} else if got != string(f.Data) {
			t.Errorf("%s is\n%s\nwant\n%s", f.Name, got, f.Data)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// lineOf is a row in one line.
func lineOf(r status.Row) string {
	line := r.Resource + ": " + string(r.State) + "; " + cmp.Or(r.Agreed, "no agreement") + "; stored " + cmp.Or(strings.Join(r.Stored, ", "), "is not known")
	sep := "; "
	for _, server := range slices.Sorted(maps.Keys(r.Written)) {
		line, sep = line+sep+server+"="+r.Written[server], " "
	}
	for _, kind := range r.Problems {
		line += "; " + string(kind)
	}
	return line
}

// named asserts that the status is the same with only the metadata of definitions of which it does not need more.
func named(t *testing.T, whole status.Observed, style status.Style) {
	t.Helper()
	o := whole
	o.CRDs = nil
	for i := range whole.CRDs {
		o.CRDs = append(o.CRDs, status.Named(whole.CRDs[i].ObjectMeta))
	}
	needs := o.Needs()
	for i := range o.CRDs {
		if slices.Contains(needs, o.CRDs[i].Name) {
			o.CRDs[i] = whole.CRDs[i]
		}
	}
	got, want := status.Of(o), status.Of(whole)
	if got.Text(style) != want.Text(style) || !reflect.DeepEqual(got.Rows, want.Rows) {
		t.Errorf("where of definitions other than %q only the metadata was read, the status is\n%s\nnot\n%s", needs, got.Text(style), want.Text(style))
	}
}

func why(t *testing.T, o status.Observed, name string, given map[string][]byte, style status.Style) string {
	t.Helper()
	var counted status.Counted
	if census, ok := given["census-"+name]; ok {
		if err := yaml.UnmarshalStrict(census, &counted); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := status.Why(o, schema.ParseGroupResource(name), counted)
	if err != nil {
		return err.Error() + "\n"
	}
	return answer.Text(style)
}

var escapes = regexp.MustCompile("\x1b\\[[0-9]*m")

// TestColor: with colours, the text is the same, except for the escape sequences of colours.
func TestColor(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/scene.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var o status.Observed
	if err := yaml.UnmarshalStrict(archive.Files[0].Data, &o); err != nil {
		t.Fatal(err)
	}
	plain, painted := status.Of(o).Text(status.Style{Width: 80}), status.Of(o).Text(status.Style{Width: 80, Color: true})
	if painted == plain || escapes.ReplaceAllString(painted, "") != plain {
		t.Errorf("painted:\n%q\nplain:\n%q", painted, plain)
	}
}

// TestUnseen: a resource without a StorageState is not called safe, unless its objects were counted.
func TestUnseen(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/unseen.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var o status.Observed
	if err := yaml.UnmarshalStrict(archive.Files[0].Data, &o); err != nil {
		t.Fatal(err)
	}
	for i, counted := range []status.Counted{{}, {Err: "nobody answers"}, {Objects: map[string]int64{"example.com/v2": 3}}} {
		if a, err := status.Why(o, schema.ParseGroupResource("widgets.example.com"), counted); err != nil || a.Blocked != (counted.Objects == nil) {
			t.Errorf("%d: %+v, %v", i, a, err)
		}
	}
}

// TestManyProblems: if many resources have problems, the status tells the most urgent ones, and only the names of the others, so that it fits on a
// screen.
func TestManyProblems(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/scene.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all status.Observed
	for i := range 40 {
		var o status.Observed
		text := strings.NewReplacer("widgets", fmt.Sprintf("widgets%02d", i), "gadgets", fmt.Sprintf("gadgets%02d", i)).Replace(string(archive.Files[0].Data))
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			all = o
			continue
		}
		all.StorageVersions = append(all.StorageVersions, o.StorageVersions[1:]...)
		all.States = append(all.States, o.States[1:]...)
		all.CRDs = append(all.CRDs, o.CRDs...)
		all.Migrations = append(all.Migrations, o.Migrations...)
	}
	c := status.Of(all)
	text := c.Text(status.Style{Width: 80})
	if n := strings.Count(text, "\n! "); n != 4 || !strings.Contains(text, "\n! apiserver-2a1b2c3d4e5f6073 (1.37) has not renewed") {
		t.Errorf("it tells %d problems of %d:\n%s", n, len(c.Problems), text)
	}
	if want := fmt.Sprintf("\nand %d more, of gadgets00.example.com, ", len(c.Problems)-4); !strings.Contains(text, want) {
		t.Errorf("it does not say %q:\n%s", want, text)
	}
	if lines := strings.Count(text, "\n"); lines > 60 {
		t.Errorf("it has %d lines:\n%s", lines, text)
	}
}
