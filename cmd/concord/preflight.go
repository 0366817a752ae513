package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/cmd/preflight"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/server/planning"
)

// newPreflightCommand returns "concord preflight", which can read an etcd too.
func newPreflightCommand() *cobra.Command {
	var etcd censusOptions
	var kubeconfig string
	var cmd *cobra.Command
	cmd = preflight.NewCommand(preflight.Config{
		Program:    "concord",
		Lifecycles: planning.Lifecycles,
		Cluster:    func() (*rest.Config, error) { return connect.Kubeconfig(kubeconfig) },
		Etcd: func(ctx context.Context) (func(context.Context, []schema.GroupResource) (*preflight.World, error), error) {
			etcd.explicit = cmd.Flags().Changed("data-dir")
			if err := etcd.validate(); err != nil {
				return nil, err
			}
			inEtcd := len(etcd.etcd.Servers) > 0 || etcd.explicit
			if inEtcd && kubeconfig != "" {
				return nil, errors.New("give --kubeconfig, or --etcd-servers or --data-dir, not both")
			}
			if !inEtcd && (kubeconfig != "" || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "") {
				return nil, nil
			}
			return etcd.world, nil
		},
	})
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "the live cluster to ask (default $KUBECONFIG)")
	etcd.output = "json" // of a census alone
	etcd.addSource(cmd.Flags())
	return cmd
}

// world reads what is stored in the etcd that the options name.
func (o *censusOptions) world(ctx context.Context, known []schema.GroupResource) (*preflight.World, error) {
	client, closeClient, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	world, err := storedInEtcd(ctx, client, o.etcd.Prefix, known)
	if err != nil {
		return nil, errors.Join(err, closeClient())
	}
	world.Close = closeClient
	return world, nil
}
