package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/stored"
)

// etcdAnswerTimeout bounds the wait for the first answer of an etcd.
const etcdAnswerTimeout = 10 * time.Second

// namedInTable is how many unreadable keys the table names; JSON names all.
const namedInTable = 10

// censusOptions says which etcd to count in and how to print the result.
type censusOptions struct {
	dataDir  string
	servers  []string
	tls      transport.TLSInfo
	prefix   string
	output   string
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
(in $TMPDIR) and changes nothing. Values that it cannot read are counted as
"unknown" and their keys are named.`,
		Example: `  concord census
  concord census --etcd-servers https://127.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key -o json`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.explicit = cmd.Flags().Changed("data-dir")
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// addFlags adds the flags that name an etcd, and --output.
func (o *censusOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.dataDir, "data-dir", "./.concord", "the server's data directory, with an embedded etcd")
	flags.StringSliceVar(&o.servers, "etcd-servers", nil, "the etcd endpoints to read (scheme://host:port or unix:///path, comma separated), in place of --data-dir")
	flags.StringVar(&o.tls.TrustedCAFile, "etcd-cafile", "", "the CA that signed etcd's certificates")
	flags.StringVar(&o.tls.CertFile, "etcd-certfile", "", "the certificate to show to etcd")
	flags.StringVar(&o.tls.KeyFile, "etcd-keyfile", "", "the key of --etcd-certfile")
	flags.StringVar(&o.prefix, "etcd-prefix", stored.DefaultPrefix, "the prefix under which the servers store objects")
	flags.StringVarP(&o.output, "output", "o", "table", "what to print: table or json")
}

func (o *censusOptions) validate() error {
	tls := o.tls.TrustedCAFile != "" || o.tls.CertFile != "" || o.tls.KeyFile != ""
	switch {
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output is %q; it can be table or json", o.output)
	case strings.Trim(o.prefix, "/") == "":
		return errors.New("--etcd-prefix must not be empty")
	case len(o.servers) > 0 && o.explicit:
		return errors.New("give --data-dir or --etcd-servers, not both")
	case len(o.servers) == 0 && tls:
		return errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers")
	case (o.tls.CertFile == "") != (o.tls.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile need each other")
	}
	return nil
}

func (o *censusOptions) run(ctx context.Context, out io.Writer) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	client, closeClient, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeClient()) }()
	census, err := rewrite.Count(ctx, rewrite.NewEtcd(client), "/"+strings.Trim(o.prefix, "/"))
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(census)
	}
	return printCensus(out, census)
}

// open returns a client for the etcd that the options name, and what releases it.
func (o *censusOptions) open(ctx context.Context) (*clientv3.Client, func() error, error) {
	if len(o.servers) > 0 {
		return o.connect(ctx, o.servers)
	}
	store, err := findStore(o.dataDir)
	if err != nil {
		return nil, nil, err
	}
	if store.endpoint != "" {
		return o.connect(ctx, []string{store.endpoint})
	}
	return store.openCopy(ctx)
}

func (o *censusOptions) connect(ctx context.Context, endpoints []string) (*clientv3.Client, func() error, error) {
	config := clientv3.Config{Endpoints: endpoints, DialTimeout: etcdAnswerTimeout, Logger: zap.NewNop()}
	if o.tls.TrustedCAFile != "" || o.tls.CertFile != "" {
		tls, err := o.tls.ClientConfig()
		if err != nil {
			return nil, nil, fmt.Errorf("etcd certificates: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdAnswerTimeout)
	defer cancel()
	if _, err := client.Get(ctx, o.prefix, clientv3.WithCountOnly()); err != nil {
		return nil, nil, errors.Join(
			fmt.Errorf("etcd at %s does not answer (check the address, the certificates and that it has a leader): %w", strings.Join(endpoints, ","), err),
			client.Close())
	}
	return client, client.Close, nil
}

func printCensus(out io.Writer, census rewrite.Census) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tENCODING\tOBJECTS\tBYTES")
	for _, row := range census.Rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", row.Resource, row.Encoding, row.Objects, row.Bytes)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if n := len(census.Unknown); n > 0 {
		fmt.Fprintf(out, "\nvalues that cannot be read: %d\n", n)
		for _, key := range census.Unknown[:min(n, namedInTable)] {
			fmt.Fprintf(out, "  %q\n", key)
		}
		if n > namedInTable {
			fmt.Fprintf(out, "  and %d more, named by -o json\n", n-namedInTable)
		}
	}
	_, err := fmt.Fprintf(out, "\nrevision %d\n", census.Revision)
	return err
}
