package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/verdict"
)

var (
	// directive is a line of a template that holds nothing but directives.
	directive = regexp.MustCompile(`(?m)^[ \t]*({{([^}\n]|}[^}\n])*}}[ \t]*)+\r?$`)
	// insideSpec is a directive in a definition's spec, also in a comment or a string of it, or a line of directives
	// with something of the spec on both sides: it may leave out or repeat versions. Those around a whole
	// definition, or in its metadata, do not.
	insideSpec = regexp.MustCompile(`(?ms)\bspec["']?[ \t]*:.*({{|^` + regexp.QuoteMeta(was) + `.*^[ \t]*[^#\s])`)
)

const (
	// was is the comment that stands where a line of directives was.
	was = "#directives"
	// kind is that of definitions.
	kind = "CustomResourceDefinition"
)

// definedBy finds the CustomResourceDefinitions of a Helm chart and its subcharts: those in crds/, which Helm applies
// unchanged, and those in templates/ that are plain except for lines of directives. If there may be others, it returns
// an error that says how to render the chart.
func (o *options) definedBy(dir string) (found []verdict.Definition, err error) {
	if _, err := os.Stat(path.Join(dir, "Chart.yaml")); err != nil {
		switch info, unread := os.Stat(dir); {
		case unread == nil && info.IsDir():
			return nil, fmt.Errorf("--chart %s is no directory of a Helm chart, as it has no Chart.yaml: %s", dir, o.outOf(dir))
		case unread == nil || strings.Contains(dir, "://"):
			return nil, fmt.Errorf("--chart %s is no directory: %s", dir, o.render(dir))
		}
		return nil, fmt.Errorf("--chart %s is no directory of a Helm chart: %w", dir, err)
	}
	chart := os.DirFS(dir)
	err = fs.WalkDir(chart, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		more, err := definitionsOf(chart, file)
		if err == nil {
			found, err = once(append(found, more...))
		}
		if err != nil {
			return fmt.Errorf("%s cannot be judged as it is (%w): %s", path.Join(dir, file), err, o.render(dir))
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("--chart %s has no CustomResourceDefinition in crds/ or templates/", dir)
	}
	return found, err
}

// definitionsOf returns the definitions of a chart's file. The error says why the file may contain others.
func definitionsOf(chart fs.FS, file string) ([]verdict.Definition, error) {
	within := strings.Split(file, "/") // the chart, or the subchart
	for len(within) > 1 && within[0] == "charts" {
		if strings.ContainsAny(within[1][:1], "_.") {
			return nil, nil // Helm does not look at it
		}
		if strings.HasSuffix(within[1], ".tgz") {
			return nil, errors.New("it is packed")
		}
		within = within[2:]
	}
	extension, name := strings.ToLower(path.Ext(file)), path.Base(file)
	needs := len(within) == 1 && (name == "Chart.yaml" || name == "requirements.yaml")
	if len(within) > 0 && !needs && !slices.Contains([]string{"crds", "templates", "charts"}, within[0]) {
		return nil, nil
	}
	switch info, err := fs.Stat(chart, file); {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("it is a link to a folder")
	case len(within) == 0:
		return nil, nil // no subchart, but a file beside them
	}
	text, err := fs.ReadFile(chart, file)
	if err != nil {
		return nil, err
	}
	switch {
	case needs:
		return nil, complete(chart, path.Dir(file), text)
	case within[0] == "crds" && slices.Contains([]string{".yaml", ".yml", ".json"}, extension):
		return parse(text)
	case within[0] == "templates":
		return rendered(name, text)
	}
	return nil, nil
}

// complete says which of the charts that a chart needs is not there yet.
func complete(chart fs.FS, dir string, text []byte) error {
	var needs struct {
		Dependencies []struct{ Name string }
	}
	if err := yaml.Unmarshal(text, &needs); err != nil {
		return err
	}
	for _, needed := range needs.Dependencies {
		folder := path.Join(dir, "charts", needed.Name)
		if packed, _ := fs.Glob(chart, folder+"-*.tgz"); len(packed) > 0 { // told elsewhere
			continue
		}
		if _, err := fs.Stat(chart, folder); err != nil {
			return fmt.Errorf("it needs the chart %s, which helm dependency build brings", needed.Name)
		}
	}
	return nil
}

// rendered are the definitions of a template that Helm renders as they are.
func rendered(name string, text []byte) ([]verdict.Definition, error) {
	partial := strings.HasPrefix(name, "_")
	switch mentions := bytes.Contains(text, []byte(kind)); {
	case strings.HasSuffix(name, "NOTES.txt"):
		return nil, nil
	case bytes.Contains(text, []byte(".Files")):
		return nil, errors.New("it has other files rendered")
	case !mentions:
		return nil, nil
	case partial:
		return nil, errors.New("other templates may include it")
	}
	text = directive.ReplaceAll(text, []byte(was))
	for _, doc := range regexp.MustCompile(`(?m)^---`).Split(string(text), -1) {
		if strings.Contains(doc, kind) && insideSpec.MatchString(doc) {
			return nil, errors.New("directives inside a spec")
		}
	}
	return parse(text)
}
