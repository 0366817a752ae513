package main

import (
	"github.com/spf13/cobra"

	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/server/generic"
)

func newAPIsCommand() *cobra.Command {
	o := generic.NewOptions()
	var output string
	var features bool
	cmd := &cobra.Command{
		Use:   "apis",
		Short: "Print the APIs, storage versions and features of a server with the given version flags",
		Long: `Print the plan of "concord server" with the same flags, without starting anything: every
version of every resource, whether it is served and why, and the version in which the
resource is stored. With --features, print every feature instead, whether it is on and why.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Complete(); err != nil {
				return err
			}
			if features {
				rows := o.Features()
				return migrating.Printed(cmd.OutOrStdout(), output, rows, func() string { return gates.Table(rows) })
			}
			plan, err := o.Plan()
			if err != nil {
				return err
			}
			return migrating.Printed(cmd.OutOrStdout(), output, plan.Rows(), plan.String)
		},
	}
	o.AddVersionFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or json.")
	cmd.Flags().BoolVar(&features, "features", false, "Print the features instead of the APIs.")
	return cmd
}
