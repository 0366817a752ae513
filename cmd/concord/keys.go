package main

import (
	"github.com/spf13/cobra"

	"github.com/concord-dev/concord/cmd/rawetcd"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// newKeysCommand returns "concord keys", which says which encryption keys may be removed.
func newKeysCommand() *cobra.Command {
	var o censusOptions
	cmd := &cobra.Command{
		Use:   "keys [KEY...]",
		Short: "Show which encryption keys stored values need, and which can be removed safely",
		Long:  "Show which encryption keys stored values need, and which can be removed safely.\n\n" + rawetcd.AboutKeys,
		Example: `  concord keys
  concord keys aescbc:v1:key1 && echo "key1 can go"`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.explicit = cmd.Flags().Changed("data-dir")
			return o.read(cmd.Context(), func(etcd *migratestore.Etcd) error {
				return rawetcd.Keys(cmd.Context(), cmd.OutOrStdout(), etcd, o.etcd.Under(), args, o.output)
			})
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}
