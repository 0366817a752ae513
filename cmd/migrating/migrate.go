// Package migrating is the command "migrate", which "concord" and "kubectl concord" both have.
package migrating

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/connect"
)

// askedByCommand marks the migrations that this command made.
const askedByCommand = "concord-migrate"

// migrateOptions say what to migrate, and how to show it.
type migrateOptions struct {
	// config is how to reach the cluster.
	config func() (*rest.Config, error)

	all, dryRun  bool
	output       string
	maxLatency   time.Duration
	maxPerSecond int64
	// latencySet and rateSet say that the flags were given.
	latencySet, rateSet bool
}

// NewCommand returns "migrate", which asks for migrations and shows their progress. program is the command to which it
// belongs.
func NewCommand(program string, config func() (*rest.Config, error)) *cobra.Command {
	o := migrateOptions{config: config}
	cmd := &cobra.Command{
		Use:   "migrate RESOURCE... | --all",
		Short: "Migrate stored objects to the encoding that all servers agree on, and wait for the end",
		Long: `Migrate the stored objects of resources to the encoding that all servers agree on, and
show the progress until the end. Concord starts the migrations that are needed after an
upgrade or a change of a CustomResourceDefinition by itself. Use this command to start one
yourself, or with a rate of your choice.

With --dry-run nothing is changed: the command prints the number and size of the stored
objects by encoding, and the expected duration. For that a server reads every stored value
of the resources once. The duration is estimated from the last migration of that server or,
if there was none, from an assumed rate of
` + fmt.Sprint(assumedPerSecond) + ` objects per second, which the output mentions. Nothing is counted of a resource that this
server does not store, such as that of an aggregated API: a dash in the table, null in JSON.

RESOURCE is a name as in kubectl: configmaps, cm, widgets.example.com. A resource that no
server serves, for example after a rollback, cannot be migrated; --all leaves it out. If you
interrupt the command, the migrations go on in the servers.

Exit codes: 0 if everything is migrated (or counted, with --dry-run), 2 if a migration failed
or was deleted, or if objects could not be migrated, 1 if the command could not start the
migrations or follow them to the end.`,
		Example: strings.ReplaceAll(`  PROGRAM migrate widgets.example.com
  PROGRAM migrate --all --dry-run
  PROGRAM migrate secrets --max-added-latency 0s`, "PROGRAM", program),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.latencySet, o.rateSet = cmd.Flags().Changed("max-added-latency"), cmd.Flags().Changed("max-objects-per-second")
			return o.run(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.all, "all", false, "migrate every resource that is stored")
	flags.BoolVar(&o.dryRun, "dry-run", false, "only print what is stored and how long it should take")
	flags.StringVarP(&o.output, "output", "o", "table", "what to print: table or json")
	flags.DurationVar(&o.maxLatency, "max-added-latency", 0, "by how much the migrations may lengthen what clients do; 0s means full speed (default the server's flag)")
	flags.Int64Var(&o.maxPerSecond, "max-objects-per-second", 0, "how many objects the migrations may write per second; 0 means no bound (default the server's flag)")
	return cmd
}

func (o *migrateOptions) validate(args []string) error {
	switch {
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output is %q; it can be table or json", o.output)
	case o.all && len(args) > 0:
		return errors.New("give resources or --all, not both")
	case !o.all && len(args) == 0:
		return errors.New("say what to migrate: names of resources, or --all")
	case o.maxLatency < 0:
		return fmt.Errorf("--max-added-latency %v must not be negative", o.maxLatency)
	case o.maxPerSecond < 0:
		return fmt.Errorf("--max-objects-per-second %d must not be negative", o.maxPerSecond)
	}
	return nil
}

func (o *migrateOptions) run(ctx context.Context, args []string, out io.Writer) error {
	if err := o.validate(args); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	cluster, err := connect.NewClient(connect.WithTimeout(config))
	if err != nil {
		return err
	}
	resources, err := o.resources(ctx, config, cluster, args)
	if err != nil {
		return fmt.Errorf("the cluster at %s: %w", config.Host, err)
	}
	if o.dryRun {
		return o.estimate(ctx, config, resources, out)
	}
	return o.migrate(ctx, cluster, resources, out)
}

// migrate asks for the migrations and follows them to their end.
func (o *migrateOptions) migrate(ctx context.Context, cluster client.WithWatch, resources []schema.GroupResource, out io.Writer) error {
	var all []*asked
	user := userOf(ctx, cluster)
	for _, gr := range resources {
		m, err := o.create(ctx, cluster, gr, user)
		switch {
		case ctx.Err() != nil:
			return butGoesOn(fmt.Errorf("interrupted while asking for the migration of %s, which may have been made", gr), all)
		case err != nil:
			return butGoesOn(fmt.Errorf("ask for the migration of %s: %w", gr, err), all)
		}
		all = append(all, m)
	}
	view := newMigrateView(out)
	if o.output == "json" {
		view = newMigrateView(io.Discard)
	}
	if err := follow(ctx, cluster, all, view); err != nil {
		return err
	}
	if o.output == "json" {
		if err := Printed(out, o.output, results(all), nil); err != nil {
			return err
		}
	}
	return verdict(all)
}

// userOf returns the name by which the API server knows the user, for the history; empty if the server does not say.
func userOf(ctx context.Context, cluster client.Client) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := cluster.Create(ctx, review); err != nil {
		return ""
	}
	return review.Status.UserInfo.Username
}

// create asks for one migration. It deletes finished migrations of the same resource that this command asked for
// before, because nobody else would ever delete them. If the user may not delete them they stay.
func (o *migrateOptions) create(ctx context.Context, cluster client.WithWatch, gr schema.GroupResource, user string) (*asked, error) {
	mine := client.MatchingLabels{migrationv1alpha1.AskedByLabel: askedByCommand}
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: gr.Group, Resource: gr.Resource},
	}}
	m.GenerateName = migrationv1alpha1.StateName(gr) + "-"
	m.Labels = mine
	if user != "" {
		m.Annotations = map[string]string{migrationv1alpha1.AskedByUserAnnotation: user}
	}
	if o.latencySet {
		m.Spec.MaxAddedLatency = &metav1.Duration{Duration: o.maxLatency}
	}
	if o.rateSet {
		m.Spec.MaxObjectsPerSecond = &o.maxPerSecond
	}
	var before migrationv1alpha1.StorageVersionMigrationList
	if err := cluster.List(ctx, &before, mine); err != nil {
		return nil, err
	}
	if err := cluster.Create(ctx, m); err != nil {
		return nil, err
	}
	for i := range before.Items {
		old := &before.Items[i]
		if migrationv1alpha1.Resource(old) == gr && migrationv1alpha1.Final(old) {
			_ = cluster.Delete(ctx, old, client.Preconditions{UID: &old.UID}) // the next one deletes it
		}
	}
	return &asked{resource: gr, migration: m}, nil
}

// asked is a migration that was asked for.
type asked struct {
	resource schema.GroupResource
	// migration is as it was last seen.
	migration *migrationv1alpha1.StorageVersionMigration
	// deleted says that somebody deleted the migration before it finished.
	deleted bool
	// waiting explains why the migration has not begun, if that is known.
	waiting string
}

func (a *asked) ended() bool { return a.deleted || migrationv1alpha1.Final(a.migration) }

func (a *asked) succeeded() bool {
	return !a.deleted && migrationv1alpha1.True(a.migration, migrationv1alpha1.MigrationSucceeded) != nil
}

// butGoesOn adds to an error the names of the migrations that go on without this command.
func butGoesOn(err error, all []*asked) error {
	var names []string
	for _, a := range all {
		if !a.ended() {
			names = append(names, a.migration.Name)
		}
	}
	if len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w; the migrations go on in the servers, and are cancelled by deleting them: %s", err, strings.Join(names, ", "))
}

func verdict(all []*asked) error {
	var failed []string
	for _, a := range all {
		if !a.succeeded() {
			failed = append(failed, a.resource.String())
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.Sort(failed)
	return program.No(fmt.Sprintf("%d of %d migrations did not succeed: %s; kubectl concord why %s tells what to do", len(failed), len(all), strings.Join(failed, ", "), failed[0]))
}
