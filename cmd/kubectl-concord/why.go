package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/status"
)

func newWhyCommand(p *plugin) *cobra.Command {
	var o outputOptions
	var count bool
	cmd := &cobra.Command{
		Use:   "why RESOURCE|CRD",
		Short: "Explain why objects of a resource are not in one version yet, and what to do about it",
		Long: `Explain why the objects of a resource are not in one version yet, so that an old version cannot
be removed from its CustomResourceDefinition, or an old release cannot be left behind. Possible
reasons are servers that disagree, the Lease of a dead server or of a server without Concord, a
migration that is paused, waits or has stalled, a cut-over on hold, a webhook that is down, and
objects that cannot be migrated. Each reason names the servers or the first objects concerned,
and says what to do about it.

By default a Concord server counts the stored objects by version, from raw etcd. This takes a
while for many objects, and only cluster admins may ask for it. With --count=false the answer
comes from the stored set in the StorageState.

Exit codes: 0 if nothing is in the way, 2 if something is, 1 on an error.`,
		Example: `  kubectl concord why widgets.example.com
  kubectl concord why secrets --count=false`,
		Args: exactly("RESOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.why(cmd.Context(), cmd.OutOrStdout(), args[0], o.output, count)
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&count, "count", true, "have a server count the stored objects")
	return cmd
}

func (p *plugin) why(ctx context.Context, out io.Writer, name, output string, count bool) error {
	c, o, gr, err := p.lookAt(ctx, name)
	if err != nil {
		return err
	}
	var counted status.Counted
	if count {
		counted = c.count(ctx, o, gr)
	}
	c.watchLeases(ctx, &o)
	answer, err := status.Why(o, gr, counted)
	if err != nil {
		return err
	}
	if output == "json" {
		err = program.PrintJSON(out, answer)
	} else {
		style, _ := terminal(out)
		_, err = io.WriteString(out, answer.Text(style))
	}
	if err == nil && answer.Blocked {
		return program.No("") // all has been said
	}
	return err
}

// notStoredHere says why the server that was asked does not store a resource.
func notStoredHere(o status.Observed, gr schema.GroupResource) string {
	const elsewhere = "is stored elsewhere, by another API server"
	for _, sv := range o.StorageVersions {
		switch {
		case sv.Name != storageversion.Name(gr):
		case storageversion.IsAggregated(&sv):
			return elsewhere
		case len(sv.Status.StorageVersions) > 0:
			return "is not stored by the server that was asked, but by another one"
		}
	}
	for _, s := range o.States {
		if schema.GroupResource(s.Spec.Resource) == gr && s.Annotations[migrationv1alpha1.AggregatedAnnotation] == "true" {
			return elsewhere
		}
	}
	return "is stored by no server now"
}

// count has a server count a resource's objects.
func (c *cluster) count(ctx context.Context, o status.Observed, gr schema.GroupResource) status.Counted {
	patient := *c.config
	patient.Timeout = 0 // a census takes as long as there are objects
	taken, err := migrating.TakeCensus(ctx, &patient, gr, migrating.Envelopes)
	if census.IsNotStored(err, gr) {
		return status.Counted{Err: "it " + notStoredHere(o, gr)}
	}
	if err != nil {
		return status.Counted{Err: err.Error()}
	}
	counted := status.Counted{Objects: map[string]int64{}}
	for _, row := range taken.Rows {
		counted.Objects[row.Encoding] += row.Objects
	}
	return counted
}

// resolveAll resolves each name, and refuses all of them if one means nothing.
func (c *cluster) resolveAll(o status.Observed, args []string) ([]schema.GroupResource, error) {
	resources := make([]schema.GroupResource, len(args))
	for i, arg := range args {
		var err error
		if resources[i], err = c.resolve(o, arg); err != nil {
			return nil, err
		}
	}
	return resources, nil
}

// resolve finds the resource that a name means.
func (c *cluster) resolve(o status.Observed, name string) (schema.GroupResource, error) {
	gr, err := migrating.Resolve(c.config, name, status.Known(o))
	if err != nil && len(o.States) == 0 && len(o.StorageVersions) == 0 {
		err = fmt.Errorf("%q: %s", name, migrating.NobodyLooks)
	}
	return gr, err
}
