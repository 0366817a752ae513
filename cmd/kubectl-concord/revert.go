package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
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
		Use:   "revert CRD --to VERSION",
		Short: "Go back to another storage version of a custom resource, and migrate its objects back",
		Long: `Go back to another storage version of a custom resource, and migrate its objects back.
Without --yes the command only shows what it would do. With --yes it changes the
CustomResourceDefinition; servers migrate the objects then, until every object is stored in that
version and status.storedVersions names no other. "kubectl concord why" tells how far they are.

The version must still be in spec.versions of the CustomResourceDefinition. Fields that only the
newer version has are lost when your conversion webhook, or pruning, removes them; the command
cannot know this beforehand.`,
		Example: `  kubectl concord revert widgets.example.com --to v1
  kubectl concord revert widgets.example.com --to v1 --yes`,
		Args: exactly("CRD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.revert(cmd.Context(), cmd.OutOrStdout(), args[0], o)
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", "the version to go back to")
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
	if err := c.store(ctx, way); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nChanged: kubectl concord why %s tells how far the objects are.\n", gr)
	return err
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
	switch {
	case way.to == "" && len(others) == 0:
		return plan{}, fmt.Errorf("%s has no version but %s", gr, way.from)
	case way.to == "":
		return plan{}, fmt.Errorf("name the version that %s goes back to, one of %s, by --to", gr, strings.Join(others, ", "))
	case way.to == way.from:
		return plan{}, fmt.Errorf("%s is stored in %s already", gr, way.to)
	case !slices.Contains(versions, way.to):
		return plan{}, fmt.Errorf("%s has no version %s, only %s: add it to the definition's spec.versions first", gr, way.to, strings.Join(versions, ", "))
	case migrationv1alpha1.Held(crd.Annotations):
		return plan{}, fmt.Errorf("the cut-over of %s is on hold, and so would this one be: kubectl annotate crd %s %s-", gr, gr, migrationv1alpha1.HoldAnnotation)
	}
	return way, nil
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
