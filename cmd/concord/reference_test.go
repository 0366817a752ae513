package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/concord-dev/concord/cmd/reference"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/stored"
)

// TestReference checks that docs/reference/concord.md says what the commands say. Of
// kube-apiserver's flags it lists only those that Kubernetes' own reference does not have.
func TestReference(t *testing.T) {
	root := newCommand()
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	config := join.Defaults()
	config.AddFlags(own)
	apiserver, _, err := root.Find([]string{"kube-apiserver"})
	requireNoError(t, err)
	apiserver.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || own.Lookup(f.Name) == nil && f.Name != stored.AllowFlag })
	for _, c := range root.Commands() {
		if gates := c.Flags().Lookup("feature-gates"); gates != nil {
			about, _, _ := strings.Cut(gates.Usage, "Options are:")
			gates.Usage = about + " \"concord apis --features\" lists them."
		}
	}
	reference.Check(t, root, "../../docs/reference/concord.md")
}
