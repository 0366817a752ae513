package stage

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/server/generic"
	"github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// The programs that a child may be besides an etcd.
const (
	serverRole   = "server"   // ours
	stockRole    = "stock"    // Kubernetes' own kube-apiserver
	migratorRole = "migrator" // Kubernetes' own kube-controller-manager
)

// Child runs the program as a server, an etcd or a migrator if it was started as one, and then
// does not return. Every program that uses this package calls it first, be it by Main.
func Child() {
	cluster.ServeEtcd()
	process.Serve(map[string]func(context.Context, []string) error{
		serverRole: runServer, stockRole: Command(stock.Command), migratorRole: Command(stock.ControllerManagerCommand),
	})
}

// Command has process.Serve run a command.
func Command(command func() *cobra.Command) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		cmd := command()
		cmd.SetArgs(args)
		return cmd.ExecuteContext(ctx)
	}
}

func runServer(ctx context.Context, args []string) error {
	o := generic.NewOptions()
	flags := pflag.NewFlagSet(serverRole, pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := o.Complete(); err != nil {
		return err
	}
	defer klog.Flush()
	return generic.Run(ctx, o, nil)
}
