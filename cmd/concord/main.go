// Command concord runs Concord's API server, its demonstration and the operator's
// commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/cmd/controllers"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/server/kube"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "concord:", err)
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			os.Exit(coded.ExitCode())
		}
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "concord",
		Short:         "A highly available, Kubernetes-style API server whose stored data migrates by itself",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath())
	})
	withVersionFlag(root).AddCommand(withVersionFlag(newServerCommand()), kube.NewCommand(), newDemoCommand(), NewCensusCommand(), newKeysCommand(), newAPIsCommand(), newPreflightCommand(), newMigrateCommand(), controllers.NewCommand("controllers"), newVersionCommand())
	return root
}

// newMigrateCommand returns "concord migrate".
func newMigrateCommand() *cobra.Command {
	var kubeconfig string
	cmd := migrating.NewCommand("concord", func() (*rest.Config, error) { return connect.Kubeconfig(kubeconfig) })
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "the live cluster to ask (default $KUBECONFIG)")
	return cmd
}
