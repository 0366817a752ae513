package preflight

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// definitions judges a change of CustomResourceDefinitions.
func (o *options) definitions(ctx context.Context) (report verdict.Report, err error) {
	wanted, err := o.wanted()
	if err != nil {
		return verdict.Report{}, err
	}
	var known []schema.GroupResource
	for _, d := range wanted {
		known = append(known, d.Resource)
	}
	gone := schema.ParseGroupResource(o.uninstall)
	if o.uninstall != "" {
		known = append(known, gone)
	}
	world, err := o.world(ctx, known)
	if err != nil {
		return verdict.Report{}, err
	}
	defer func() { err = errors.Join(err, world.close()) }()
	if o.uninstall != "" && world.Definitions[gone] == nil {
		return verdict.Report{}, fmt.Errorf("--uninstall-crd: there is no CustomResourceDefinition %q, whose name is <plural>.<group>: kubectl get crd", o.uninstall)
	}
	if o.uninstall != "" {
		return verdict.OfDeletion(o.change(ctx, world, gone, nil)), nil
	}
	var changes []verdict.Change
	for i := range wanted {
		changes = append(changes, o.change(ctx, world, wanted[i].Resource, &wanted[i]))
	}
	return verdict.OfDefinitions(changes), nil
}

// change gathers what is known of a definition and its objects.
func (o *options) change(ctx context.Context, w *World, gr schema.GroupResource, wanted *verdict.Definition) verdict.Change {
	c := verdict.Change{Wanted: wanted, Present: w.Definitions[gr], Stored: compat.Stored{Resource: gr}}
	for _, s := range w.Stored {
		if s.Resource == gr {
			c.Stored = s
		}
	}
	if w.Count != nil && o.count && c.Present != nil {
		c.Stored.Census = o.countOne(ctx, w, gr)
	}
	return c
}

// wanted reads the definitions that are to be applied.
func (o *options) wanted() ([]verdict.Definition, error) {
	switch {
	case o.crd == "-":
		text, err := io.ReadAll(o.in)
		if err != nil {
			return nil, err
		}
		return some("stdin", text)
	case o.crd != "":
		text, err := os.ReadFile(o.crd)
		if err != nil {
			return nil, fmt.Errorf("--crd: %w", err)
		}
		return some("--crd "+o.crd, text)
	case o.chart != "":
		return chart(o.chart)
	}
	return nil, nil
}

// some parses definitions, of which there must be one.
func some(source string, text []byte) ([]verdict.Definition, error) {
	found, err := parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", source, err)
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no CustomResourceDefinition of apiextensions.k8s.io/v1", source)
	}
	return found, nil
}

// parse finds the definitions in a stream of YAML or JSON documents.
func parse(text []byte) ([]verdict.Definition, error) {
	var found []verdict.Definition
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return nil, err
		}
		if kind.Kind != "CustomResourceDefinition" {
			continue
		}
		if kind.APIVersion != apiextensionsv1.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("a CustomResourceDefinition is in %s, which no release serves any more", kind.APIVersion)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(doc, &crd); err != nil {
			return nil, err
		}
		d := DefinitionOf(&crd)
		if d.Resource.Group == "" || d.Resource.Resource == "" || d.Storage == "" {
			return nil, fmt.Errorf("CustomResourceDefinition %q names no group, plural or storage version", crd.Name)
		}
		found = append(found, d)
	}
}

var (
	// directive is a line of a template that holds nothing but directives.
	directive = regexp.MustCompile(`(?m)^\s*({{[^\n]*}}\s*)+$\n?`)
	defines   = regexp.MustCompile(`(?m)^kind:\s*["']?CustomResourceDefinition["']?\s*$`)
)

// chart finds the definitions of a Helm chart and its subcharts: those in crds/, which Helm
// applies as they are, and those in templates/ that are plain but for lines of directives.
func chart(dir string) ([]verdict.Definition, error) {
	if _, err := os.Stat(filepath.Join(dir, "Chart.yaml")); err != nil {
		return nil, fmt.Errorf("--chart %s is no directory of a Helm chart: %w", dir, err)
	}
	var found []verdict.Definition
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".yaml") && !strings.HasSuffix(path, ".yml") {
			return err
		}
		folder := "/" + filepath.ToSlash(path)
		template := strings.Contains(folder, "/templates/")
		if !template && !strings.Contains(folder, "/crds/") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !defines.Match(text) {
			return err
		}
		if template {
			text = directive.ReplaceAll(text, nil)
		}
		more, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s cannot be read as it is (%w): helm template %s | preflight --crd -", path, err, dir)
		}
		for _, m := range more {
			if strings.Contains(strings.Join(m.Versions, " ")+m.Resource.String(), "{{") {
				return fmt.Errorf("%s computes names or versions: helm template %s | preflight --crd -", path, dir)
			}
		}
		found = append(found, more...)
		return nil
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("--chart %s has no CustomResourceDefinition in crds/ or templates/", dir)
	}
	return found, err
}
