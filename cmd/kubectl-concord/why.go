package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/status"
)

func newWhyCommand(p *plugin) *cobra.Command {
	var o outputOptions
	var count bool
	cmd := &cobra.Command{
		Use:   "why RESOURCE|CRD",
		Short: "Say what keeps the objects of a resource from being in one version, and what to do",
		Long: `Say what keeps the objects of a resource from being in one version, and so a version from
being taken out of a CustomResourceDefinition, or a release from being left behind: servers
that disagree, and which; the Lease of a dead server, or of one without Concord; a migration
that is paused, waits or has stalled; a cut-over on hold; a webhook that is down; objects that
cannot be migrated, by name. Each with what to do about it.

A server counts the stored objects by version for it, from raw etcd, which takes a while for
many objects, and only cluster admins may ask for it; --count=false goes by what is remembered
of the stored set.

It exits with 0 if nothing blocks, with 2 if something does, and with 1 on an error.`,
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
		counted = c.count(ctx, gr)
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

// storedElsewhere is why a server does not count a resource of an aggregated API server.
const storedElsewhere = "is stored elsewhere, by another API server"

// count has a server count a resource's objects.
func (c *cluster) count(ctx context.Context, gr schema.GroupResource) status.Counted {
	patient := *c.config
	patient.Timeout = 0 // a census takes as long as there are objects
	taken, err := migrating.TakeCensus(ctx, &patient, gr, migrating.Envelopes)
	if census.IsNotStored(err, gr) {
		return status.Counted{Err: "it " + storedElsewhere}
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

// resolve finds the resource that a name means, by what is known of the cluster and else by
// its discovery, which knows short names.
func (c *cluster) resolve(o status.Observed, name string) (schema.GroupResource, error) {
	found, like := status.Resolve(o, name)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return schema.GroupResource{}, fmt.Errorf("%q may be %s: give the name with its group", name, migrating.Names(found))
	}
	if gvr, err := migrating.Discover(c.config, name); err == nil {
		gr := gvr.GroupResource()
		if found, _ := status.Resolve(o, gr.String()); slices.Contains(found, gr) {
			return gr, nil
		}
	}
	if len(o.States) == 0 && len(o.StorageVersions) == 0 {
		return schema.GroupResource{}, fmt.Errorf("%q: %s", name, migrating.NobodyLooks)
	}
	if len(like) == 0 {
		return schema.GroupResource{}, fmt.Errorf("%q is no resource that is stored here: nothing is known of any", name)
	}
	return schema.GroupResource{}, fmt.Errorf("%q is no resource that is stored here; the nearest by name: %s", name, migrating.Names(like))
}
