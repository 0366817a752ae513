// Command concord-controllers is "concord controllers" alone: a program that holds no server, for
// clusters whose kube-apiservers stay as they are.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/concord-dev/concord/cmd/build"
	"github.com/concord-dev/concord/cmd/controllers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	cmd := controllers.NewCommand("concord-controllers")
	cmd.Version = build.This().String()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "concord-controllers:", err)
		os.Exit(1)
	}
}
