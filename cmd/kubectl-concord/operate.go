package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/status"
)

// change is a command's edit, or deletion, of a migration that has not ended.
type change struct {
	// done is the word for it.
	done string
	// apply changes the spec; false if it is so already.
	apply func(*migrationv1alpha1.StorageVersionMigration) bool
	// remove: the migration is deleted. needless: Concord would not make it again.
	remove, needless bool
}

func paused(yes bool) change {
	c := change{done: "paused", apply: func(m *migrationv1alpha1.StorageVersionMigration) bool {
		changed := m.Spec.Paused != yes
		m.Spec.Paused = yes
		return changed
	}}
	if !yes {
		c.done = "resumed"
	}
	return c
}

// throttled bounds the objects per second; 0 is no bound.
func throttled(rate int64) change {
	c := change{done: fmt.Sprintf("throttled to %d objects/s", rate), apply: func(m *migrationv1alpha1.StorageVersionMigration) bool {
		changed := m.Spec.MaxObjectsPerSecond == nil || *m.Spec.MaxObjectsPerSecond != rate
		m.Spec.MaxObjectsPerSecond = &rate
		return changed
	}}
	if rate == 0 {
		c.done = "not throttled any more"
	}
	return c
}

// rateOf reads the RATE of "throttle": objects per second, or none for no bound.
func rateOf(text string) (int64, error) {
	if text == "none" {
		return 0, nil
	}
	rate, err := strconv.ParseInt(strings.TrimSuffix(text, "/s"), 10, 64)
	if err != nil || rate <= 0 {
		return 0, fmt.Errorf("RATE is %q; it is objects per second, 200 for example, or none", text)
	}
	return rate, nil
}

func newPauseCommand(p *plugin) *cobra.Command {
	return p.changing("pause", "Pause the migrations of resources; they keep their progress", paused(true))
}

func newResumeCommand(p *plugin) *cobra.Command {
	return p.changing("resume", "Resume paused migrations where they stopped", paused(false))
}

func newCancelCommand(p *plugin) *cobra.Command {
	cmd := p.changing("cancel", "Cancel migrations that users asked for; migrated objects stay migrated", change{done: "cancelled", remove: true})
	cmd.Long = `Cancel migrations that users asked for, with "kubectl concord migrate" or otherwise. Objects
that are already migrated stay migrated.

Migrations that Concord created itself, because objects are not in the version that all servers
agree on, are left alone: Concord would create them again at once. Pause them instead. They are
cancelled if all objects are in that version by now, or their CRD is being deleted.`
	return cmd
}

// changing returns a command that changes the live migrations of the resources it is given.
func (p *plugin) changing(verb, short string, what change) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: verb + " RESOURCE...", Short: short, Args: some("RESOURCE"),
		Example: "  kubectl concord " + verb + " widgets.example.com",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.change(cmd.Context(), cmd.OutOrStdout(), args, what, dryRun)
		},
	}
	addDryRun(cmd, &dryRun)
	return cmd
}

func addDryRun(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "have the server check it, and change nothing")
}

// dry has the server check a change only.
func dry(run bool) []string {
	if run {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func newThrottleCommand(p *plugin) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "throttle RESOURCE RATE",
		Short: "Limit the objects per second that the unfinished migrations of a resource write",
		Example: `  kubectl concord throttle widgets.example.com 200
  kubectl concord throttle widgets.example.com none`,
		Args: exactly("RESOURCE", "RATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rate, err := rateOf(args[1])
			if err != nil {
				return err
			}
			return p.change(cmd.Context(), cmd.OutOrStdout(), args[:1], throttled(rate), dryRun)
		},
	}
	addDryRun(cmd, &dryRun)
	return cmd
}

func (p *plugin) change(ctx context.Context, out io.Writer, args []string, what change, dryRun bool) error {
	c, o, err := p.look(ctx)
	if err != nil {
		return err
	}
	return each(args, func(arg string) error {
		gr, err := c.resolve(o, arg)
		if err != nil {
			return err
		}
		live, crd := liveOf(o, gr), definitionOf(o, gr)
		what.needless = crd != nil && crd.DeletionTimestamp != nil || status.InOneVersion(o, gr)
		if len(live) == 0 && !what.remove && !what.needless && isDue(o, gr) {
			return fmt.Errorf("%s has no migration under way yet: Concord makes one as soon as it can, and kubectl concord why %s says what it waits for; or ask for one with kubectl concord migrate %s: it waits for the same, but you can pause and throttle it while it waits", gr, gr, gr)
		}
		if len(live) == 0 {
			return fmt.Errorf("%s has no migration under way; kubectl concord migrate %s asks for one", gr, gr)
		}
		return c.changeAll(ctx, out, live, what, dryRun)
	})
}

// isDue reports whether objects of the resource may be in another version than they are to have, and Concord migrates
// them by itself, which it may not do with built-in resources beside stock kube-apiservers.
func isDue(o status.Observed, gr schema.GroupResource) bool {
	reported := func(v apiserverinternalv1alpha1.StorageVersion) bool {
		of, err := storageversion.GroupResource(v.Name)
		return err == nil && of == gr
	}
	if definitionOf(o, gr) == nil && !slices.ContainsFunc(o.StorageVersions, reported) {
		return false
	}
	a, err := status.Why(o, gr, status.Counted{})
	return err == nil && a.Target != "" && slices.ContainsFunc(a.Stored, func(s status.Share) bool { return s.Encoding != a.Target })
}

// each calls do for each argument. As in kubectl, a failure does not keep the others from being done.
func each(args []string, do func(arg string) error) error {
	var errs []error
	for _, arg := range args {
		errs = append(errs, do(arg))
	}
	return errors.Join(errs...)
}

// changeAll changes the migrations of one resource: each that can be changed, also where others cannot. The error is
// that one could not be, but a madeAgain is an error only where nothing was changed.
func (c *cluster) changeAll(ctx context.Context, out io.Writer, live []*migrationv1alpha1.StorageVersionMigration, what change, dryRun bool) error {
	var kept []madeAgain
	var errs []error
	for _, m := range live {
		done, err := c.apply(ctx, m, what, dryRun)
		if again := madeAgain(""); errors.As(err, &again) {
			kept = append(kept, again)
			continue
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		if dryRun {
			done += " (dry run)"
		}
		fmt.Fprintf(out, "%s: %s: migration %s\n", migrationv1alpha1.Resource(m), done, m.Name)
	}
	for _, again := range kept {
		if len(kept)+len(errs) == len(live) {
			errs = append(errs, again)
			continue
		}
		fmt.Fprintf(out, "%s: not %s: %s\n", migrationv1alpha1.Resource(live[0]), what.done, again)
	}
	return errors.Join(errs...)
}

// madeAgain says why a migration is not taken back that Concord has made by itself.
type madeAgain string

// Error implements error.
func (m madeAgain) Error() string { return string(m) }

// liveOf are the migrations of a resource that have not ended.
func liveOf(o status.Observed, gr schema.GroupResource) (live []*migrationv1alpha1.StorageVersionMigration) {
	for i := range o.Migrations {
		if m := &o.Migrations[i]; migrationv1alpha1.Resource(m) == gr && !migrationv1alpha1.Final(m) {
			live = append(live, m)
		}
	}
	return live
}

// apply makes one change and returns what was done.
func (c *cluster) apply(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, what change, dryRun bool) (string, error) {
	if what.remove {
		return what.done, c.cancel(ctx, m, what.needless, dryRun)
	}
	before := client.MergeFrom(m.DeepCopy())
	if !what.apply(m) {
		return what.done + " already", nil
	}
	if err := c.objects.Patch(ctx, m, before, &client.PatchOptions{DryRun: dry(dryRun)}); err != nil {
		return "", fmt.Errorf("migration %s: %w", m.Name, err)
	}
	return what.done, nil
}

// cancel deletes a migration. If the migration is a copy of one of storagemigration.k8s.io, it deletes the original,
// because the copy alone would be created again. needless says that one that Concord made would not be made again.
func (c *cluster) cancel(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, needless, dryRun bool) error {
	// One that was paused or throttled may have lost its label.
	own := m.Labels[migrationv1alpha1.MadeByLabel] == migrationv1alpha1.MadeByTrigger || m.Annotations[migrationv1alpha1.AttemptAnnotation] != ""
	if own && !needless {
		gr := migrationv1alpha1.Resource(m)
		if m.Spec.Paused {
			return madeAgain(fmt.Sprintf("migration %s was made by Concord itself, and would be made again; it is paused already", m.Name))
		}
		return madeAgain(fmt.Sprintf("migration %s was made by Concord itself, since objects of %s are not in the version that all servers agree on, and would be made again: kubectl concord pause %s", m.Name, gr, gr))
	}
	if original := migrationv1alpha1.Original(m); original != nil {
		gv, err := schema.ParseGroupVersion(original.APIVersion)
		if err != nil {
			return err
		}
		api, err := metadata.NewForConfig(c.config)
		if err != nil {
			return err
		}
		err = api.Resource(gv.WithResource(migrationv1alpha1.StorageVersionMigrations.Resource)).Delete(ctx, original.Name,
			metav1.DeleteOptions{DryRun: dry(dryRun), Preconditions: &metav1.Preconditions{UID: &original.UID}})
		return gone(err, "migration "+original.Name+" of "+gv.String())
	}
	err := c.objects.Delete(ctx, m, client.Preconditions{UID: &m.UID}, &client.DeleteOptions{DryRun: dry(dryRun)})
	return gone(err, "migration "+m.Name)
}

// gone takes it for no error that the object to be deleted does not exist.
func gone(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", what, err)
}

func definitionOf(o status.Observed, gr schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
	for i := range o.CRDs {
		if migrationv1alpha1.ResourceOf(&o.CRDs[i]) == gr {
			return &o.CRDs[i]
		}
	}
	return nil
}
