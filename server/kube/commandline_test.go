package kube_test

import (
	"encoding/json"
	"io"
	"regexp"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"

	"github.com/concord-dev/concord/server/kube"
	stockserver "github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/process"
)

// flags are those of a command by name.
type flags map[string]flagged

type flagged struct{ Type, Default, WithoutValue, Shorthand, Deprecated string }

// listFlags prints the flags of our command and of the stock one. It runs in a process of its
// own: the stock command takes over the signals.
func listFlags(out io.Writer) error {
	stockCommand := stockserver.Command()
	logs.AddFlags(stockCommand.PersistentFlags()) // as cli.Run does
	var both [2]flags
	for i, command := range []interface{ Flags() *pflag.FlagSet }{kube.NewCommand(), stockCommand} {
		both[i] = flags{}
		command.Flags().VisitAll(func(f *pflag.Flag) {
			both[i][f.Name] = flagged{f.Value.Type(), f.DefValue, f.NoOptDefVal, f.Shorthand, f.Deprecated}
		})
	}
	return json.NewEncoder(out).Encode(both)
}

// runOnce runs the test binary in a role to its end and returns what it printed.
func runOnce(t *testing.T, role string, args ...string) []byte {
	t.Helper()
	cmd := process.Self(role, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	must(t, err)
	return out
}

// Every flag of the stock command is one of ours too, with the same default.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	var both [2]flags
	must(t, json.Unmarshal(runOnce(t, listing), &both))
	ours, theirs := both[0], both[1]
	if len(theirs) < 150 {
		t.Errorf("the stock command has %d flags", len(theirs))
	}
	for name, want := range theirs {
		if got, ok := ours[name]; !ok {
			t.Errorf("--%s is not there", name)
		} else if got != want {
			t.Errorf("--%s is %+v, the stock one %+v", name, got, want)
		}
	}
	t.Logf("%d flags are as those of the stock command, which has %d; ours has %d", len(theirs), len(theirs), len(ours))
}

// The version is printed in the forms that programs read at the stock command.
func TestVersionFlag(t *testing.T) {
	t.Parallel()
	for flag, form := range map[string]*regexp.Regexp{
		"--version":      regexp.MustCompile(`^Kubernetes v1\.37\.\d+\S*\n$`),
		"--version=true": regexp.MustCompile(`^Kubernetes v1\.37\.\d+\S*\n$`),
		"--version=raw":  regexp.MustCompile(`^version\.Info\{Major:"1", Minor:"37", .*GitVersion:"v1\.37\.\d+[^"]*", .*\}\n$`),
	} {
		if said := runOnce(t, ours, flag); !form.Match(said) {
			t.Errorf("%s prints %q", flag, said)
		}
	}
}
