package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/concord-dev/concord/cmd/rawetcd"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// newKeysCommand returns "concord keys", which says which encryption keys may be removed.
func newKeysCommand() *cobra.Command {
	var o censusOptions
	cmd := &cobra.Command{
		Use:   "keys [KEY...]",
		Short: "Say which encryption keys stored values need, and which are safe to remove",
		Long:  "Say which encryption keys stored values need, and which are safe to remove.\n\n" + rawetcd.AboutKeys,
		Example: `  concord keys
  concord keys aescbc:v1:key1 && echo "key1 can go"`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.explicit = cmd.Flags().Changed("data-dir")
			return o.runKeys(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *censusOptions) runKeys(ctx context.Context, out io.Writer, asked []string) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	client, closeClient, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeClient()) }()
	return rawetcd.Keys(ctx, out, migratestore.NewEtcd(client), o.etcd.Under(), asked, o.output)
}
