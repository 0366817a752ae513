// Command concord-controllers is "concord controllers" alone: a program that holds no server, for
// clusters whose kube-apiservers stay as they are.
package main

import (
	"github.com/concord-dev/concord/build"
	"github.com/concord-dev/concord/cmd/controllers"
	"github.com/concord-dev/concord/cmd/program"
)

func main() {
	cmd := controllers.NewCommand("concord-controllers")
	cmd.Version = build.This().String()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	program.Main("concord-controllers", cmd)
}
