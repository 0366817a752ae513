package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/server/generic"
)

func newServerCommand() *cobra.Command {
	o := generic.NewOptions()
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run one API server, with an embedded etcd unless --etcd-servers names one",
		Long: `Run one API server. Without --etcd-servers it starts an etcd in the data directory. Further
servers use that etcd: concord server --etcd-servers unix:///<data-dir>/etcd.sock
--cert-dir <data-dir>/pki --data-dir <another> --secure-port <another>.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Complete(); err != nil {
				return err
			}
			if err := o.ApplyLogging(); err != nil {
				return err
			}
			defer klog.Flush()
			return generic.Run(cmd.Context(), o, func(s *generic.Server) {
				fmt.Fprintf(cmd.OutOrStdout(), "serving on https://%s\n", s.Address())
				if s.Kubeconfig() != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\n", s.Kubeconfig())
				}
			})
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}
