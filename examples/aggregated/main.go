// Command aggregated is an aggregated API server, k8s.io/sample-apiserver, that takes part in
// the protocol (docs/library.md). Package wardle has its code.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"

	"github.com/concord-dev/concord/examples/aggregated/wardle"
)

func main() {
	os.Exit(cli.Run(wardle.NewCommand(genericapiserver.SetupSignalContext(), os.Stdout, os.Stderr)))
}
