// Command concord runs Concord's API server, its demonstration and the operator's
// commands.
package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/cmd/controllers"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/server/kube"
)

func main() { program.Main("concord", newCommand()) }

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "concord",
		Short:         "Kubernetes API servers that migrate their stored objects between API versions by themselves",
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
