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

// The roles of a child process (process.Self) besides that of an etcd.
const (
	serverRole   = "server"   // ours
	stockRole    = "stock"    // Kubernetes' own kube-apiserver
	migratorRole = "migrator" // Kubernetes' own kube-controller-manager
)

// Child runs a server, an etcd or a migrator if this process was started as one, and then does
// not return. Every program that uses this package calls Child first; Main does so.
func Child() {
	cluster.ServeEtcd()
	process.Serve(map[string]func(context.Context, []string) error{
		serverRole: runServer, stockRole: Command(stock.Command), migratorRole: Command(stock.ControllerManagerCommand),
	})
}

// Command returns a function for process.Serve that runs a cobra command.
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
