package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/concord-dev/concord/server"
)

func newAPIsCommand() *cobra.Command {
	o := server.NewOptions()
	var output string
	cmd := &cobra.Command{
		Use:   "apis",
		Short: "Print which APIs a server of these versions serves, and in which it stores every resource",
		Long: `Print the plan of "concord server" with the same flags, without starting anything: every
version of every resource, whether it is served and why, and the version in which the
resource is stored.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Complete(); err != nil {
				return err
			}
			plan, err := o.Plan()
			if err != nil {
				return err
			}
			switch output {
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(plan.Rows())
			case "table":
				_, err := fmt.Fprint(cmd.OutOrStdout(), plan)
				return err
			default:
				return fmt.Errorf("-o %s: allowed are table and json", output)
			}
		},
	}
	o.AddVersionFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or json.")
	return cmd
}
