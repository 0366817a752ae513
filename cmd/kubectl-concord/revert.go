package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/status"
)

// revertOptions say how to go back.
type revertOptions struct {
	to  string
	yes bool
}

func newRevertCommand(p *plugin) *cobra.Command {
	var o revertOptions
	cmd := &cobra.Command{
		Use:   "revert CRD",
		Short: "Go back to the previous storage version of a custom resource, and migrate its objects back",
		Long: `Go back to the previous storage version of a custom resource, and migrate its objects back.
Without --yes the command only shows what it would do. With --yes it does it, and waits until
every object is stored in that version and status.storedVersions names no other.

The previous version is the last one that servers wrote before the current one, if that is
known; --to names another one. It must still be in spec.versions of the CustomResourceDefinition.
Fields that only the newer version has are lost when your conversion webhook, or pruning, removes
them; the command cannot know this beforehand.

Exit codes: 0 if it is done or was only shown, 2 if objects cannot be migrated or servers do not
follow the change, 1 on an error.`,
		Example: `  kubectl concord revert widgets.example.com
  kubectl concord revert widgets.example.com --yes`,
		Args: exactly("CRD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.revert(cmd.Context(), cmd.OutOrStdout(), args[0], o)
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", "the version to go back to (default the previous storage version)")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do it")
	return cmd
}

// plan is a way back.
type plan struct {
	crd      string
	resource schema.GroupResource
	// from is the version that is stored now, to the one that will be stored.
	from, to string
	// objects is how many will be migrated, as text.
	objects string
}

func (p *plugin) revert(ctx context.Context, out io.Writer, name string, options revertOptions) error {
	c, o, gr, err := p.lookAt(ctx, name)
	if err != nil {
		return err
	}
	way, err := planOf(o, gr, options.to)
	if err != nil {
		return err
	}
	counted := c.count(ctx, o, gr)
	way.objects = countedIn(counted, way)
	c.watchLeases(ctx, &o)
	now, err := status.Why(o, gr, counted)
	if err != nil {
		return err
	}
	text := way.text()
	if len(now.Problems) > 0 {
		style, _ := terminal(out)
		text += "\nIn its way as it is now:\n" + now.Obstacles(style)
	}
	if _, err := io.WriteString(out, text); err != nil {
		return err
	}
	if !options.yes {
		_, err := fmt.Fprintln(out, "\nNothing was changed: give --yes to do it.")
		return err
	}
	// What has failed by now is from before, also what failed while objects were counted.
	if o, err = c.glance(ctx); err != nil {
		return err
	}
	if err := c.store(ctx, way); err != nil {
		return err
	}
	return c.followRevert(ctx, out, way, failed(o))
}

// planOf decides how to go back.
func planOf(o status.Observed, gr schema.GroupResource, to string) (plan, error) {
	crd := definitionOf(o, gr)
	if crd == nil {
		return plan{}, fmt.Errorf("%s has no CustomResourceDefinition: the versions in which built-in resources are stored follow the servers' --emulation-version and --min-compatibility-version", gr)
	}
	way := plan{crd: crd.Name, resource: gr, from: status.StorageOf(crd), to: to}
	var versions, others []string
	for _, v := range crd.Spec.Versions {
		versions = append(versions, v.Name)
		if v.Name != way.from {
			others = append(others, v.Name)
		}
	}
	if way.to == "" {
		way.to = before(o, crd)
	}
	switch {
	case way.to == "" && len(others) == 0:
		return plan{}, fmt.Errorf("%s has no version but %s", gr, way.from)
	case way.to == "":
		return plan{}, fmt.Errorf("it is not known in which version %s was stored before %s: name one of %s by --to", gr, way.from, strings.Join(others, ", "))
	case way.to == way.from:
		return plan{}, fmt.Errorf("%s is stored in %s already", gr, way.to)
	case !slices.Contains(versions, way.to):
		return plan{}, fmt.Errorf("%s has no version %s, only %s: add it to the definition's spec.versions first", gr, way.to, strings.Join(versions, ", "))
	case migrationv1alpha1.Held(crd.Annotations):
		return plan{}, fmt.Errorf("the cut-over of %s is on hold, and so would this one be: kubectl annotate crd %s %s-", gr, gr, migrationv1alpha1.HoldAnnotation)
	}
	return way, nil
}

// before is the version that servers wrote last before the present one. Where no StorageVersion remembers one it is
// the only other one in status.storedVersions, or that the last migration to the present one was from; else empty.
func before(o status.Observed, crd *apiextensionsv1.CustomResourceDefinition) string {
	gr, now := migrationv1alpha1.ResourceOf(crd), status.StorageOf(crd)
	last, version := int64(-1), ""
	for i := range o.StorageVersions {
		sv := &o.StorageVersions[i]
		history, err := storageversion.History(sv)
		if sv.Name != storageversion.Name(gr) || err != nil {
			continue
		}
		for e, epoch := range history.Last {
			if v := versionOf(string(e), gr.Group); v != "" && v != now && epoch > last {
				last, version = epoch, v
			}
		}
	}
	if version != "" {
		return version
	}
	if v, only := onlyOther(crd.Status.StoredVersions, now); only {
		return v
	}
	for _, p := range pastOf(o, gr) {
		var from []string
		for _, e := range p.From {
			from = append(from, versionOf(e, gr.Group))
		}
		if v, only := onlyOther(from, now); only && versionOf(p.To, gr.Group) == now {
			return v
		}
	}
	return ""
}

// versionOf is the version of an encoding in the group; empty if it is in none, as Unknown.
func versionOf(encoding, group string) string {
	gv, err := schema.ParseGroupVersion(string(agree.Encoding(encoding).Plain()))
	if err != nil || gv.Group != group {
		return ""
	}
	return gv.Version
}

// onlyOther returns the version besides this one, if there is exactly one.
func onlyOther(versions []string, this string) (string, bool) {
	others := sets.New(versions...).Delete(this).UnsortedList()
	if len(others) != 1 || others[0] == "" {
		return "", false
	}
	return others[0], true
}

// countedIn is how many objects a way back migrates.
func countedIn(counted status.Counted, way plan) string {
	if counted.Objects == nil {
		return "all objects that are not stored so"
	}
	var n int64
	for encoding, objects := range counted.Objects {
		if encoding != (schema.GroupVersion{Group: way.resource.Group, Version: way.to}).String() {
			n += objects
		}
	}
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func (w plan) text() string {
	return fmt.Sprintf(`%s goes back from %s to %s:
  1. the CustomResourceDefinition stores %s, and all servers follow
  2. %s: migrated to %s
  3. status.storedVersions is pruned to %s
`, w.resource, w.from, w.to, w.to, w.objects, w.to, w.to)
}

// store sets the storage version of the CustomResourceDefinition, if the definition is still as it was when the plan
// was made.
func (c *cluster) store(ctx context.Context, way plan) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.objects.Get(ctx, client.ObjectKey{Name: way.crd}, crd); err != nil {
		return err
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Storage && v.Name != way.from {
			return fmt.Errorf("%s stores %s by now and not %s: look again", way.crd, v.Name, way.from)
		}
		v.Storage = v.Name == way.to
	}
	if err := c.objects.Update(ctx, crd); err != nil {
		return fmt.Errorf("change CustomResourceDefinition %s: %w", way.crd, err)
	}
	return nil
}

const (
	followEvery = 500 * time.Millisecond
	// settleTime is how long servers may disagree after a change before that counts as a
	// problem: they follow within seconds.
	settleTime = 30 * time.Second
)

// failed are the migrations that have failed by now.
func failed(o status.Observed) sets.Set[types.UID] {
	all := sets.New[types.UID]()
	for i := range o.Migrations {
		if m := &o.Migrations[i]; migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed) != nil {
			all.Insert(m.UID)
		}
	}
	return all
}

// followRevert waits until every object is back. What failed before it began does not keep it.
func (c *cluster) followRevert(ctx context.Context, out io.Writer, way plan, before sets.Set[types.UID]) error {
	began, last := time.Now(), ""
	style, _ := terminal(out)
	for {
		o, err := c.glance(ctx, way.crd)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w; the definition is changed, and the servers go on", err)
		}
		if err == nil {
			c.watchLeases(ctx, &o)
			o.Migrations = slices.DeleteFunc(o.Migrations, func(m migrationv1alpha1.StorageVersionMigration) bool { return before.Has(m.UID) })
			answer, err := status.Why(o, way.resource, status.Counted{})
			if err != nil {
				return err
			}
			if !answer.Blocked {
				_, err := fmt.Fprintf(out, "%s: every object is in %s\n", way.resource, way.to)
				return err
			}
			if stuck(answer, time.Since(began)) {
				_, err := io.WriteString(out, answer.Text(style))
				return cmp.Or[error](err, program.No(""))
			}
			if line := progressOf(answer); line != last {
				last = line
				fmt.Fprintln(out, line)
			}
		}
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return fmt.Errorf("interrupted: the definition is changed, and the servers go on; kubectl concord why %s tells", way.resource)
		}
	}
}

// stuck reports whether any of the problems in the way needs somebody to act. Some problems do not concern the resource:
// the server that answers is not ready, or serves no StorageVersions, or a server is late to renew its Lease. Objects
// may be migrated back nevertheless.
func stuck(a status.Answer, since time.Duration) bool {
	return slices.ContainsFunc(a.Problems, func(p status.Problem) bool {
		switch p.Kind {
		case status.BadObjects, status.WebhookDown, status.MigrationFailed, status.Paused, status.StockServer, status.SilentServer:
			return true
		case status.NotReady, status.StockAnswered, status.LateServer:
			return false
		}
		return since > settleTime
	})
}

func progressOf(a status.Answer) string {
	if len(a.Moving) == 0 {
		return "waiting: " + a.Summary
	}
	if m := a.Moving[0]; m.Total > 0 {
		return fmt.Sprintf("%s: %d of %d objects", m.State, m.Done, m.Total)
	}
	return a.Moving[0].State
}
