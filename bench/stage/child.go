package stage

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/server/generic"
	"github.com/concord-dev/concord/testbed/cluster"
)

const serverArgument = "server"

// Child runs the program as a server, an etcd or a migrator if it was started as one, and then
// does not return. Every program that uses this package calls it first, be it by Main.
func Child() {
	cluster.ServeEtcd()
	if len(os.Args) < 2 {
		return
	}
	run := map[string]func(context.Context, []string) error{
		serverArgument: runServer, stockArgument: runStock, migratorArgument: runMigrator,
	}[os.Args[1]]
	if run == nil {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[2:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runServer(ctx context.Context, args []string) error {
	o := generic.NewOptions()
	flags := pflag.NewFlagSet(serverArgument, pflag.ContinueOnError)
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
