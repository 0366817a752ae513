package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/cmd/rawetcd"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
)

// censusOptions says which etcd to count in and how to print the result.
type censusOptions struct {
	dataDir  string
	etcd     rawetcd.Options
	output   string
	verify   bool
	explicit bool // dataDir was given
}

// NewCensusCommand returns "concord census", which counts stored objects by resource
// and encoding from raw etcd.
func NewCensusCommand() *cobra.Command {
	var o censusOptions
	cmd := &cobra.Command{
		Use:   "census",
		Short: "Count stored objects by resource and encoding, from raw etcd",
		Long: `Count stored objects by resource and encoding, from raw etcd.

It reads the etcd named by --etcd-servers, or the one embedded in the server that
runs on --data-dir. If no server runs there, it reads a temporary copy of the data
(in $TMPDIR) and changes nothing.

Values whose encoding cannot be recognized are counted as "unknown", and their keys are
printed. With --verify every value that is not encrypted is also decoded, as a server does
before it answers a request, and values that cannot be decoded are printed with the reason. Encrypted values
are counted by their key, but not decrypted: the command needs no encryption key.`,
		Example: `  concord census
  concord census --verify
  concord census --etcd-servers https://127.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key -o json`,
		Args:          noResources,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.explicit = cmd.Flags().Changed("data-dir")
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.verify, "verify", false, "decode every value that is not encrypted, and name those that do not decode")
	return cmd
}

// noResources refuses names: a census reads all of etcd once.
func noResources(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q: concord census counts all resources, and -o json prints them for jq; kubectl concord census %s counts one", args[0], args[0])
}

// addFlags adds the flags that name an etcd, and --output.
func (o *censusOptions) addFlags(flags *pflag.FlagSet) {
	o.addSource(flags)
	flags.StringVarP(&o.output, "output", "o", "table", "what to print: table or json")
}

// addSource adds the flags that name an etcd.
func (o *censusOptions) addSource(flags *pflag.FlagSet) {
	flags.StringVar(&o.dataDir, "data-dir", "./.concord", "the server's data directory, with an embedded etcd")
	o.etcd.AddFlags(flags, "--data-dir")
}

func (o *censusOptions) validate() error {
	switch {
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output is %q; it can be table or json", o.output)
	case len(o.etcd.Servers) > 0 && o.explicit:
		return errors.New("give --data-dir or --etcd-servers, not both")
	}
	return o.etcd.Validate()
}

func (o *censusOptions) run(ctx context.Context, out io.Writer) error {
	var verify migratestore.Verify
	if o.verify {
		verify = stored.Decodes(planning.Schemes...)
	}
	return o.read(ctx, func(etcd *migratestore.Etcd) error {
		census, err := migratestore.Count(ctx, etcd, o.etcd.Under(), verify)
		if err != nil {
			return err
		}
		return rawetcd.PrintCensus(out, census, o.verify, o.output)
	})
}

// read opens the etcd that the options name.
func (o *censusOptions) read(ctx context.Context, read func(*migratestore.Etcd) error) error {
	if err := o.validate(); err != nil {
		return err
	}
	client, closeClient, err := o.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(read(migratestore.NewEtcd(client)), closeClient())
}

// open returns a client for the etcd that the options name, and the function that releases it.
func (o *censusOptions) open(ctx context.Context) (*clientv3.Client, func() error, error) {
	if len(o.etcd.Servers) > 0 {
		return o.connect(ctx, o.etcd.Servers)
	}
	store, err := findStore(o.dataDir)
	if err != nil {
		return nil, nil, err
	}
	if store.endpoint != "" {
		return o.connect(ctx, []string{store.endpoint})
	}
	client, closeClient, err := store.openCopy(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := o.etcd.Used(ctx, client); err != nil {
		return nil, nil, errors.Join(err, closeClient())
	}
	return client, closeClient, nil
}

func (o *censusOptions) connect(ctx context.Context, endpoints []string) (*clientv3.Client, func() error, error) {
	client, err := o.etcd.Connect(ctx, endpoints)
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}
