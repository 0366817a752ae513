// Package preflight is the command "preflight", which "concord" and "kubectl concord" both
// have. The contents of raw etcd are handed to it, so that it links no client of etcd.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// Config has the settings that differ between the programs that have the command. All fields are
// required but Etcd.
type Config struct {
	// Program is how users call it.
	Program string
	// Lifecycles say in which releases each version of each built-in resource exists.
	Lifecycles func() []compat.Lifecycle
	// Cluster is how to reach a live cluster.
	Cluster func() (*rest.Config, error)
	// Etcd returns the function that reads etcd if flags ask for it; known are resources to look for. Nil: there are
	// no such flags.
	Etcd func(ctx context.Context) (read func(ctx context.Context, known []schema.GroupResource) (*World, error), err error)
}

// World describes the stored objects.
type World struct {
	// Stored has the encodings in which each resource may be stored, and a census of it if one was taken.
	Stored []compat.Stored
	// Definitions are the CustomResourceDefinitions by resource; nil for one that cannot be read.
	Definitions map[schema.GroupResource]*verdict.Definition
	// Count takes the census of a resource that has none; nil if all were taken. It returns nil if no server counts.
	// The error says why there is no census; census.IsNotStored recognizes the one of a server without a store of the
	// resource, which has nothing to count.
	Count func(ctx context.Context, gr schema.GroupResource) (*compat.StoredCensus, error)
	// List calls visit with every object of a built-in resource, in the given version. The error says why not with all
	// of them; a resource that is not stored has none.
	List func(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error
	// Close ends the reading; nil where nothing has to be closed.
	Close func() error
}

func (w *World) close() error {
	if w.Close == nil {
		return nil
	}
	return w.Close()
}

// options holds the command's Config, flags and streams.
type options struct {
	Config
	to, backTo                  string
	emulation, minCompatibility string
	crds                        []string
	output                      string
	all, count                  bool
	in                          io.Reader
	complaints                  io.Writer
}

// NewCommand returns "preflight".
func NewCommand(config Config) *cobra.Command {
	o := options{Config: config}
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether every stored object stays readable after an upgrade, a rollback or a change of a CRD",
		Long: `Check whether every stored object stays readable after a change, without changing anything.
The change is one of these:

  --to, --back-to                                    servers of another release
  --emulation-version, --min-compatibility-version   servers of this release at other versions
  --crd                                              CustomResourceDefinitions to be applied

--crd may be repeated: the definitions are checked in the given order, as if they were applied
one after the other.

The stored encodings are read from a live cluster: from its StorageStates, from the failures of
migrations, and from a census of raw values, which a server takes for cluster admins. The census
decodes every value, which takes a while for many objects. With --count=false there is no
census, and the output says how many resources were not counted.` + etcdHelp(config) + ` Raw values
take precedence over StorageStates.

The command also looks for objects that stay readable but that the server would refuse when
they are written again, because of CEL expressions with functions that it lacks, or of names of
Services. These objects are listed, but do not change the answer.

The definitions of a Helm chart are checked as Helm renders them:
helm template --include-crds CHART | ` + config.Program + ` preflight --crd -

The answer is safe (exit code 0), unsafe (2) or unknown (1), with the reason, the first objects
and what to do. Errors exit with 1, too. -o sarif is for CI.`,
		Example: strings.ReplaceAll(`  PROGRAM preflight --to 1.38
  PROGRAM preflight --back-to 1.35 -o json
  PROGRAM preflight --emulation-version 1.36 --min-compatibility-version 1.35
  PROGRAM preflight --crd crd.yaml -o sarif
  PROGRAM preflight --crd widgets.yaml --crd gears.yaml`, "PROGRAM", config.Program),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q: preflight takes flags alone, --to 1.38 for example", args[0])
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.in, o.complaints = cmd.InOrStdin(), cmd.ErrOrStderr()
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.to, "to", "", "the release to go forward to, 1.38 for example")
	flags.StringVar(&o.backTo, "back-to", "", "the release to go back to, 1.35 for example")
	flags.StringVar(&o.emulation, "emulation-version", "", "the release that this release's servers are to emulate")
	flags.StringVar(&o.minCompatibility, "min-compatibility-version", "", "the oldest release that must be able to read what they will store")
	flags.StringArrayVar(&o.crds, "crd", nil, "a file of CustomResourceDefinitions that are to be applied, or - for stdin; may be repeated")
	flags.BoolVar(&o.count, "count", true, "in a live cluster, have a server count the stored objects")
	flags.BoolVar(&o.all, "all", false, "list in the text what is safe, too")
	flags.StringVarP(&o.output, "output", "o", "text", "what to print: "+strings.Join(verdict.Formats, ", "))
	return cmd
}

func etcdHelp(config Config) string {
	if config.Etcd == nil {
		return ""
	}
	return ` Or all raw values are
read from an etcd: that of --etcd-servers, or that of a running or stopped server in --data-dir.
Without any of these flags and without $KUBECONFIG it is the etcd in ./.concord.`
}

func (o *options) validate() error {
	given := 0
	for _, is := range []bool{o.to != "", o.backTo != "", o.emulation+o.minCompatibility != "", len(o.crds) > 0} {
		if is {
			given++
		}
	}
	switch {
	case !slices.Contains(verdict.Formats, o.output):
		return fmt.Errorf("--output is %q; it can be %s", o.output, strings.Join(verdict.Formats, ", "))
	case given == 0:
		return errors.New("say which server is to start, --to or --back-to a release or --emulation-version; or which definition is to be applied, --crd")
	case given > 1:
		return errors.New("give one of --to, --back-to, --emulation-version (with --min-compatibility-version) and --crd")
	}
	return nil
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	report, err := o.report(ctx)
	if err != nil {
		return err
	}
	if err := report.Write(out, o.output, o.all); err != nil {
		return err
	}
	if report.Verdict == compat.Unsafe {
		return program.No(report.Err().Error())
	}
	return report.Err()
}

func (o *options) report(ctx context.Context) (report verdict.Report, err error) {
	if len(o.crds) > 0 {
		return o.definitions(ctx)
	}
	target, rules, err := o.target()
	if err != nil {
		return verdict.Report{}, err
	}
	world, err := o.world(ctx, target.Resources())
	if err != nil {
		return verdict.Report{}, err
	}
	defer func() { err = errors.Join(err, world.close()) }()
	if err := o.counted(ctx, world); err != nil {
		return verdict.Report{}, err
	}
	return verdict.OfServer(target, world.Stored).Warned(rules.warnings(ctx, world)), ctx.Err()
}

// target returns the server that will be started, and its rules for new writes.
func (o *options) target() (*compat.Target, rules, error) {
	binary := compat.BinaryVersion()
	if o.to+o.backTo == "" {
		return o.thisRelease()
	}
	flag, value := "to", o.to
	if o.backTo != "" {
		flag, value = "back-to", o.backTo
	}
	release, err := compat.ParseTarget(binary, flag, value, o.backTo != "")
	if err != nil {
		return nil, rules{}, err
	}
	if release.EqualTo(binary) {
		return o.thisRelease()
	}
	return compat.ReleaseTarget(o.Lifecycles(), release), rulesOf(release, release), nil
}

// thisRelease plans as this release's servers do.
func (o *options) thisRelease() (*compat.Target, rules, error) {
	binary := compat.BinaryVersion()
	emulation, minCompatibility, err := compat.ParseVersions(binary, o.emulation, o.minCompatibility)
	if err != nil {
		return nil, rules{}, err
	}
	plan, err := compat.NewPlan(o.Lifecycles(), compat.Options{Binary: binary, Emulation: emulation, MinCompatibility: minCompatibility})
	if err != nil {
		return nil, rules{}, err
	}
	return plan.Target(), rulesOf(plan.Emulation, plan.MinCompatibility), nil
}

// world reads what is stored, from where the flags say.
func (o *options) world(ctx context.Context, known []schema.GroupResource) (*World, error) {
	if o.Etcd != nil {
		read, err := o.Etcd(ctx)
		if err != nil {
			return nil, err
		}
		if read != nil {
			return read(ctx, known)
		}
	}
	config, err := o.Cluster()
	if err != nil {
		return nil, err
	}
	return inCluster(ctx, config, known)
}
