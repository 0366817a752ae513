package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/server/generic"
)

const (
	serverArgument = "server"
	etcdArgument   = "etcd"
)

// Child runs the program as a server, an etcd or a migrator if it was started as one, and then
// does not return. Every program that uses this package calls it first, be it by Main.
func Child() {
	if len(os.Args) < 2 {
		return
	}
	run := map[string]func(context.Context, []string) error{
		serverArgument: runServer, etcdArgument: runEtcd, stockArgument: runStock, migratorArgument: runMigrator,
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

// etcdPercent is by how many percent of its live objects an etcd's heap may grow between two
// collections of garbage, unless GOGC says it. With Go's own 100 an etcd of a million keys spends
// a tenth of two processors on marking its index, no matter which client writes to it: the cost
// that grows with the objects would be that.
const etcdPercent = 300

func runEtcd(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("one directory is wanted")
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(etcdPercent)
	}
	etcd, err := embedded.StartEtcd(ctx, args[0])
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return etcd.Close()
	case err := <-etcd.Err():
		return errors.Join(err, etcd.Close())
	}
}
