package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/demo"
)

// newDemoCommand returns "concord demo", which upgrades a cluster of three servers under
// load and proves from raw etcd that nothing went wrong.
func newDemoCommand() *cobra.Command {
	var cfg demo.Config
	var output string
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Upgrade three servers under load, migrate their stored objects, and check the result",
		Long: `Start an etcd and a server on free ports of 127.0.0.1, load objects, start two more
servers, and keep writing through all three. Then roll the servers to the next release,
move a custom resource to another storage version, kill a server, and pause another one
for longer than its Lease. At the end read everything back and count it in raw etcd.

The command exits with 1 if anything is wrong. It stops every process that it started
and removes every file that it made.`,
		Example: `  concord demo
  concord demo --objects 500 -o json
  concord demo --keep`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q; it can be table or json", output)
			}
			if cfg.Objects < demo.MinObjects {
				return fmt.Errorf("--objects is %d; it must be at least %d", cfg.Objects, demo.MinObjects)
			}
			return runDemo(cmd, cfg, output == "json", keep)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&cfg.Objects, "objects", demo.DefaultObjects, "how many objects to load, half of them custom resources")
	flags.DurationVar(&cfg.LeaseDuration, "identity-lease-duration", demo.DefaultLeaseDuration, "how long the servers count as alive without renewing their identity Leases")
	flags.StringVarP(&output, "output", "o", "table", "what to print at the end: table or json")
	flags.BoolVar(&keep, "keep", false, "leave the cluster running at the end, until Ctrl-C, and print its KUBECONFIG")
	return cmd
}

func runDemo(cmd *cobra.Command, cfg demo.Config, asJSON, keep bool) error {
	// The client library logs broken connections, which the demo makes and counts itself.
	klog.SetLogger(logr.Discard())
	out := cmd.OutOrStdout()
	// Where nobody reads the output any more, the demo ends as by Ctrl-C, and removes its files. The signal itself
	// would end the process, and also comes from connections to servers that are killed.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	cfg.Progress = out
	if asJSON {
		cfg.Progress = cmd.ErrOrStderr()
	}
	if file, ok := cfg.Progress.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		cfg.Progress = watched{cfg.Progress, stop}
	}
	var printed error
	cfg.Done = func(ctx context.Context, report demo.Report, kubeconfig string) {
		if asJSON {
			printed = program.PrintJSON(out, report)
		} else {
			fmt.Fprintln(out)
			printed = report.Print(out)
		}
		if keep {
			fmt.Fprintf(cfg.Progress, "\nThe cluster runs until Ctrl-C. In another terminal:\nexport KUBECONFIG=%s\n", kubeconfig)
			<-ctx.Done()
		}
	}
	report, err := demo.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(printed, report.Err())
}

// watched is an output whose reader may go away.
type watched struct {
	io.Writer
	gone func()
}

// Write implements io.Writer.
func (w watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.gone()
	}
	return n, err
}
