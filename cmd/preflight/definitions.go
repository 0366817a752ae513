package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// definitions judges CustomResourceDefinitions that will be applied.
func (o *options) definitions(ctx context.Context) (report verdict.Report, err error) {
	wanted, err := o.wanted()
	if err != nil {
		return verdict.Report{}, err
	}
	var known []schema.GroupResource
	for _, d := range wanted {
		known = append(known, d.Resource)
	}
	world, err := o.world(ctx, known)
	if err != nil {
		return verdict.Report{}, err
	}
	defer func() { err = errors.Join(err, world.close()) }()
	var changes []verdict.Change
	before := map[schema.GroupResource][]string{}
	for i := range wanted {
		gr := wanted[i].Resource
		c := o.change(ctx, world, &wanted[i])
		c.Before = slices.Clone(before[gr])
		changes, before[gr] = append(changes, c), append(before[gr], wanted[i].Storage)
	}
	return verdict.OfDefinitions(changes), nil
}

// change gathers what is known of a definition and its objects.
func (o *options) change(ctx context.Context, w *World, wanted *verdict.Definition) verdict.Change {
	gr := wanted.Resource
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

// wanted reads the definitions to be applied, in their order. Several forms of one resource's definition are all kept:
// each is applied over the one before.
func (o *options) wanted() (all []verdict.Definition, err error) {
	for _, file := range o.crds {
		found, err := o.inFile(file)
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			if i := lastOf(all, d.Resource); i < 0 || !same(all[i], d) {
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// inFile are the definitions of a file of --crd.
func (o *options) inFile(file string) ([]verdict.Definition, error) {
	if file == "-" {
		text, err := io.ReadAll(o.in)
		if err != nil {
			return nil, err
		}
		return some("stdin", text)
	}
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, syscall.EISDIR), bytes.HasPrefix(text, []byte(gzipped)):
		return nil, fmt.Errorf("--crd %[1]s is a directory, or packed: helm template --include-crds %[1]s | %[2]s preflight --crd - for a Helm chart, kubectl kustomize %[1]s | %[2]s preflight --crd - for kustomize; of other directories, name the files", file, o.Program)
	case err != nil:
		return nil, fmt.Errorf("--crd: %w", err)
	}
	return some("--crd "+file, text)
}

// gzipped is how a file begins that gzip has packed.
const gzipped = "\x1f\x8b"

// lastOf is where the last definition of a resource is; -1 if there is none.
func lastOf(all []verdict.Definition, gr schema.GroupResource) int {
	for i, d := range slices.Backward(all) {
		if d.Resource == gr {
			return i
		}
	}
	return -1
}

// same says whether two definitions of a resource have the same versions.
func same(a, b verdict.Definition) bool {
	return a.Storage == b.Storage && slices.Equal(a.Versions, b.Versions)
}
