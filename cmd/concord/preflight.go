package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/planning"
)

// preflightOptions say which server is to start, and on what.
type preflightOptions struct {
	to, backTo                  string
	emulation, minCompatibility string
	kubeconfig                  string
	etcd                        censusOptions
}

// newPreflightCommand returns "concord preflight", which tells beforehand whether a server
// may start on what is stored.
func newPreflightCommand() *cobra.Command {
	var o preflightOptions
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Tell whether servers of another release or other versions can read what is stored",
		Long: `Tell, for each resource, whether the server that is to start can read every stored
object: one of another release (--to, --back-to), or this binary at other versions
(--emulation-version, --min-compatibility-version). Nothing is changed.

What may be stored is read from the StorageStates of a live cluster (--kubeconfig,
$KUBECONFIG), or of an etcd (--etcd-servers, or --data-dir of a server that runs or is
stopped), where raw values are read as well if a stored set is not known. Without any
of these flags and $KUBECONFIG it is the etcd in ./.concord.

It exits with 0 if the server can read everything, with 2 if it cannot, and with 1 if
nobody could tell, or on an error. What a later release removes is known from the APIs'
own lifecycles; custom resources are read by the versions in their definitions.`,
		Example: `  concord preflight --to 1.38
  concord preflight --back-to 1.35 --etcd-servers https://127.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key
  concord preflight --emulation-version 1.36 --min-compatibility-version 1.35 -o json`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.etcd.explicit = cmd.Flags().Changed("data-dir")
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.to, "to", "", "the release to go forward to, 1.38 for example")
	flags.StringVar(&o.backTo, "back-to", "", "the release to go back to, 1.35 for example")
	flags.StringVar(&o.emulation, "emulation-version", "", "the release that this binary is to emulate")
	flags.StringVar(&o.minCompatibility, "min-compatibility-version", "", "the oldest release that must be able to read what this binary will store")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the live cluster to ask (default $KUBECONFIG)")
	o.etcd.addFlags(flags)
	return cmd
}

// preflightReport is what the command found.
type preflightReport struct {
	// Target is the server that is to start.
	Target  string        `json:"target"`
	Verdict compat.Safety `json:"verdict"`
	// Resources have the unsafe first, then those of which nobody could tell, each sorted.
	Resources []compat.Finding `json:"resources"`
}

// preflightError is a verdict other than safe.
type preflightError struct {
	verdict compat.Safety
	message string
}

// Error implements error.
func (e preflightError) Error() string { return e.message }

// ExitCode is the command's.
func (e preflightError) ExitCode() int {
	if e.verdict == compat.Unsafe {
		return 2
	}
	return 1
}

func (o *preflightOptions) run(ctx context.Context, out io.Writer) error {
	target, err := o.target()
	if err != nil {
		return err
	}
	stored, err := o.stored(ctx, target)
	if err != nil {
		return err
	}
	report := preflightReport{Target: target.Name, Resources: []compat.Finding{}}
	for _, s := range stored {
		report.Resources = append(report.Resources, target.Judge(s))
	}
	slices.SortStableFunc(report.Resources, func(a, b compat.Finding) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), strings.Compare(a.Resource, b.Resource))
	})
	report.Verdict = compat.Overall(report.Resources)
	if err := report.print(out, o.etcd.output); err != nil {
		return err
	}
	return report.err()
}

func urgency(f compat.Finding) int {
	return slices.Index([]compat.Safety{compat.Unsafe, compat.CouldNotTell, compat.Safe}, f.Verdict)
}

// target returns the server that is to start.
func (o *preflightOptions) target() (*compat.Target, error) {
	versions := o.emulation != "" || o.minCompatibility != ""
	switch {
	case o.to != "" && o.backTo != "", versions && o.to+o.backTo != "":
		return nil, errors.New("give one of --to, --back-to and --emulation-version (with --min-compatibility-version)")
	case versions:
		return o.thisBinary()
	case o.to == "" && o.backTo == "":
		return nil, errors.New("say which server is to start: --to or --back-to a release, or --emulation-version for this binary")
	}
	flag, value, binary := "to", o.to, compat.BinaryVersion()
	if o.backTo != "" {
		flag, value = "back-to", o.backTo
	}
	release, err := compat.ParseTarget(binary, flag, value, o.backTo != "")
	if err != nil {
		return nil, err
	}
	if release.EqualTo(binary) {
		return o.thisBinary()
	}
	return compat.ReleaseTarget(planning.Lifecycles(), release), nil
}

// thisBinary plans as this binary's servers do.
func (o *preflightOptions) thisBinary() (*compat.Target, error) {
	binary := compat.BinaryVersion()
	emulation, minCompatibility, err := compat.ParseVersions(binary, o.emulation, o.minCompatibility)
	if err != nil {
		return nil, err
	}
	plan, err := compat.NewPlan(planning.Lifecycles(), compat.Options{Binary: binary, Emulation: emulation, MinCompatibility: minCompatibility})
	if err != nil {
		return nil, err
	}
	return plan.Target(), nil
}

// stored reads what may be stored, from where the options say.
func (o *preflightOptions) stored(ctx context.Context, target *compat.Target) ([]compat.Stored, error) {
	if err := o.etcd.validate(); err != nil {
		return nil, err
	}
	inEtcd := len(o.etcd.servers) > 0 || o.etcd.explicit
	if inEtcd && o.kubeconfig != "" {
		return nil, errors.New("give --kubeconfig, or --etcd-servers or --data-dir, not both")
	}
	if !inEtcd && (o.kubeconfig != "" || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "") {
		return storedInCluster(ctx, o.kubeconfig, target)
	}
	client, closeClient, err := o.etcd.open(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := storedInEtcd(ctx, client, o.etcd.prefix, target)
	return stored, errors.Join(err, closeClient())
}

func (r preflightReport) print(out io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tSTORED\tVERDICT\tREASON")
	for _, f := range r.Resources {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Resource, cmp.Or(strings.Join(f.Stored, ","), "-"), word(f.Verdict), f.Reason)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s: %s\n", r.Target, word(r.Verdict))
	return err
}

func word(s compat.Safety) string {
	if s == compat.CouldNotTell {
		return "could not tell"
	}
	return s.String()
}

// err says in a line why the verdict is not safe, and what to do.
func (r preflightReport) err() error {
	var names []string
	for _, f := range r.Resources {
		if f.Verdict == r.Verdict {
			names = append(names, f.Resource)
		}
	}
	which := fmt.Sprintf("%s of %d resources", strings.Join(names[:min(len(names), namedInTable)], ", "), len(r.Resources))
	if more := len(names) - namedInTable; more > 0 {
		which = fmt.Sprintf("%s and %d more of %d resources", strings.Join(names[:namedInTable], ", "), more, len(r.Resources))
	}
	switch r.Verdict {
	case compat.Safe:
		return nil
	case compat.Unsafe:
		return preflightError{r.Verdict, fmt.Sprintf("unsafe: %s may be stored as %s cannot read; choose versions whose storage it reads (concord apis tells) and wait until the migrations are done", which, r.Target)}
	default:
		return preflightError{r.Verdict, fmt.Sprintf("could not tell about %s; wait until their migrations are done, or let it read raw values with --etcd-servers or --data-dir", which)}
	}
}
