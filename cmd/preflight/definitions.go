package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
	if _, exists := world.Definitions[gone]; o.uninstall != "" && !exists {
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
	present, exists := w.Definitions[gr]
	c := verdict.Change{Wanted: wanted, Present: present, Unread: exists && present == nil, Stored: compat.Stored{Resource: gr}}
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
		return o.definedBy(o.chart)
	}
	return nil, nil
}

// once leaves out definitions that are there already. Of two that differ, nobody can tell which one is
// applied last.
func once(all []verdict.Definition) (distinct []verdict.Definition, err error) {
	for _, d := range all {
		i := slices.IndexFunc(distinct, func(other verdict.Definition) bool { return other.Resource == d.Resource })
		switch {
		case i < 0:
			distinct = append(distinct, d)
		case distinct[i].Storage != d.Storage || !slices.Equal(distinct[i].Versions, d.Versions):
			return nil, fmt.Errorf("CustomResourceDefinition %s is there twice, with different versions: judge one after the other", d.Resource)
		}
	}
	return distinct, nil
}
