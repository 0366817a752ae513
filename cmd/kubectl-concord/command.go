package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/build"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/cmd/preflight"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/verdict"
)

// asTyped is how users call this one.
const asTyped = "kubectl concord"

// plugin holds the flags that all commands share.
type plugin struct {
	// flags are kubectl's for the cluster to reach: --kubeconfig, --context and so on.
	flags clientcmd.ClientConfig
	// warnings takes the warnings of API servers.
	warnings rest.WarningHandler
}

func (p *plugin) config() (*rest.Config, error) {
	config, err := connect.Loaded(p.flags)
	if err == nil {
		config.WarningHandler = p.warnings
	}
	return config, err
}

func newCommand() *cobra.Command {
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	p := &plugin{flags: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), warnings: rest.NoWarnings{}}
	root := newStatusCommand(p)
	root.Use = "kubectl-concord"
	root.Args = nil // as cobra does it, with the commands that are spelled alike
	root.Short = "Watch and control the migration of stored objects between API versions"
	root.Long = `Watch and control the migration of stored objects between API versions.

Without a command it shows the state of the cluster on one screen. ` + statusHelp
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: asTyped}
	root.Version = build.This().String()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		klog.SetLogger(logr.Discard()) // the commands tell people themselves what the client library logs
		p.warnings = rest.NewWarningWriter(cmd.ErrOrStderr(), rest.WarningWriterOptions{Deduplicate: true})
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (%s --help lists the flags)", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "the kubeconfig that names the cluster (default $KUBECONFIG, or ~/.kube/config)")
	clientcmd.BindOverrideFlags(overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	root.AddCommand(newStatusCommand(p), newWhyCommand(p), newHistoryCommand(p), newCensusCommand(p), newKeysCommand(p), migrating.NewCommand(asTyped, p.config),
		newPauseCommand(p), newResumeCommand(p), newCancelCommand(p), newThrottleCommand(p),
		newRevertCommand(p), newDashboardCommand(p),
		preflight.NewCommand(preflight.Config{Program: asTyped, Lifecycles: verdict.Lifecycles, Cluster: p.config}))
	for _, cmd := range root.Commands() {
		if strings.Contains(cmd.Use, "RESOURCE") {
			cmd.ValidArgsFunction = p.completeResource
		}
	}
	return root
}

// completeResource names the resources that have a StorageState, to a shell.
func (p *plugin) completeResource(cmd *cobra.Command, _ []string, begun string) (names []string, _ cobra.ShellCompDirective) {
	var states migrationv1alpha1.StorageStateList
	c, err := p.cluster()
	if err == nil {
		err = c.objects.List(cmd.Context(), &states)
	}
	for _, gr := range stored(status.Observed{States: states.Items}) {
		if strings.HasPrefix(gr.String(), begun) {
			names = append(names, gr.String())
		}
	}
	if err != nil {
		cobra.CompErrorln(err.Error())
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// exactly refuses other arguments than these, by name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return fmt.Errorf("give %s: %s %s", strings.Join(names, " and "), cmd.CommandPath(), strings.Join(names, " "))
	}
}

// some refuses no argument at all, by name.
func some(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return fmt.Errorf("give %s: %s %s", name, cmd.CommandPath(), name)
	}
}

// newStatusCommand returns "status", which the plugin also runs without a command.
func newStatusCommand(p *plugin) *cobra.Command {
	var o outputOptions
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of servers, agreement and migrations, problems first",
		Long:  "Show the state of the cluster on one screen. " + statusHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.status(cmd.Context(), cmd.OutOrStdout(), o.output, watch)
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep running, and print the state again whenever it changes")
	return cmd
}

const statusHelp = `Problems come first, each with
what to do about it and the first objects concerned. Then follow the migrations with their
progress, rate and time left, and the servers with their releases.

The column MIN is the min compatibility version of a server: the oldest release that can read
what the server stores.

Exit codes: 0 if the state could be read, whatever it is, 1 if not.`

// outputOptions say how to print.
type outputOptions struct{ output string }

func (o *outputOptions) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "what to print: text or json")
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.validate() }
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

func (o *outputOptions) validate() error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output is %q; it can be text or json", o.output)
	}
	return nil
}

const (
	// plainWidth is how wide text is that goes to no terminal.
	plainWidth = 80
	// leastWidth is the width below which tables cannot be read.
	leastWidth = 40
)

// terminal says whether out is one, and how text looks there.
func terminal(out io.Writer) (style status.Style, is bool) {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return status.Style{Width: plainWidth}, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		width = 0
	}
	return styleOf(width, os.Getenv), true
}

// styleOf returns how text looks on a terminal of a width (0 if unknown). Only terminals get colours; NO_COLOR
// (no-color.org) and TERM=dumb turn them off.
func styleOf(width int, env func(string) string) status.Style {
	style := status.Style{Width: plainWidth, Color: env("NO_COLOR") == "" && env("TERM") != "dumb"}
	if width > 0 {
		style.Width = max(width, leastWidth)
	}
	return style
}
