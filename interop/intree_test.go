package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/concord-dev/concord/e2e/beside"
)

// order creates a migration of storagemigration.k8s.io, as its users do by hand.
func order(t testing.TB, w *beside.Widgets) {
	t.Helper()
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": tested(t).resource().GroupVersion().String(), "kind": "StorageVersionMigration", "metadata": map[string]any{"name": w.Plural},
		"spec": map[string]any{"resource": map[string]any{"group": beside.Group, "resource": w.Plural}},
	}}
	if _, err := w.Server.Dynamic().Resource(tested(t).resource()).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// said has the reason and the message of a true condition of a migration.
type said struct{ reason, message string }

// conditions returns the true conditions of the migration that order has created.
func conditions(ctx context.Context, t testing.TB, w *beside.Widgets) (map[string]said, error) {
	m, err := w.Server.Dynamic().Resource(tested(t).resource()).Get(ctx, w.Plural, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]said{}
	all, _, err := unstructured.NestedSlice(m.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["status"] == "True" {
			found[fmt.Sprint(c["type"])] = said{fmt.Sprint(c["reason"]), fmt.Sprint(c["message"])}
		}
	}
	return found, err
}

// TestInTree is the control of TestBadObjects: kube-controller-manager's own migrator on the same
// objects. An object that cannot be written fails the migration as a whole, and storedVersions is
// set to the new version all the same, or, if a webhook is down, the migrator tries it for ever and says nothing. A
// value that cannot be read fails the migration after a minute, before it has written any object.
func TestInTree(t *testing.T) {
	c := newCluster(t)
	a := c.APIServer("a")
	cases := arrange(t, a)
	controllerManager(t, a, withMigrator, "--leader-elect=false")
	for _, b := range cases {
		b.widgets.Store("v2")
	}
	for _, b := range cases {
		order(t, b.widgets)
	}
	for _, b := range cases {
		if !b.inTreeEnds {
			continue
		}
		beside.Eventually(t, 2*beside.Patience, "the in-tree migration of "+b.plural+" fails and prunes", func(ctx context.Context) error {
			now, err := conditions(ctx, t, b.widgets)
			if err != nil {
				return err
			}
			versions, err := b.widgets.StoredVersions(ctx)
			if _, failed := now["Failed"]; !failed || !slices.Equal(versions, []string{"v2"}) {
				err = errors.Join(err, fmt.Errorf("its conditions are %v, storedVersions are %v", now, versions))
			}
			return err
		})
		counts, err := b.widgets.Stored(t.Context(), 0)
		if err != nil || counts[beside.V1] == 0 {
			t.Errorf("%s: stored are %v, %v", b.plural, counts, err)
		}
		now, err := conditions(t.Context(), t, b.widgets)
		t.Logf("%s: storedVersions are [v2], stored are %v, %v: %s", b.plural, counts, err, now["Failed"].message)
	}
	for _, b := range cases {
		now, err := conditions(t.Context(), t, b.widgets)
		_, failed := now["Failed"]
		_, succeeded := now["Succeeded"]
		if !b.inTreeEnds && (failed || succeeded || err != nil) {
			t.Errorf("%s has ended: %v, %v", b.plural, now, err)
		}
		if !b.inTreeEnds {
			counts, err := b.widgets.Stored(t.Context(), 0)
			t.Logf("%s: it still runs, stored are %v, %v", b.plural, counts, err)
		}
	}
	// The consequence: the version can be removed from the CRD, and its objects cannot be read any more.
	lost := cases[0].widgets
	if err := lost.TakeOut(); err != nil {
		t.Fatalf("take out v1: %v", err)
	}
	beside.Eventually(t, beside.Patience, "the object in v1 cannot be read", func(ctx context.Context) error {
		_, err := a.Dynamic().Resource(lost.In("v2")).Namespace(beside.Namespace).Get(ctx, beside.ObjectName(bad), metav1.GetOptions{})
		if err == nil {
			return errors.New("it is read")
		}
		t.Logf("%s: %v", lost.Plural, err)
		return nil
	})
}
