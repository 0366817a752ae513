package interop

import (
	"context"
	"fmt"
	"testing"

	"github.com/concord-dev/concord/e2e/beside"
)

// TestTogether: kube-controller-manager's own migrator migrates the same resource at the same
// time, while clients write. No write is lost, and storedVersions never lacks a version in which
// objects are stored.
func TestTogether(t *testing.T) {
	const objects = 1000
	c := newCluster(t)
	a := guarded(t, c)
	b := c.APIServer("b")
	deployed(a, nil)
	controllerManager(t, b, withMigrator, "--leader-elect=false")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	stop := beside.Guard(t, c.Raw, w.In("v1").GroupResource(), 0)
	writing := w.Write(objects, a, b)
	w.Store("v2")
	order(t, w)
	w.AwaitPruned(objects)
	beside.Eventually(t, 2*beside.Patience, "the in-tree migration ends", func(ctx context.Context) error {
		now, err := conditions(ctx, t, w)
		if _, ok := now["Succeeded"]; err == nil && !ok {
			err = fmt.Errorf("its conditions are %v", now)
		}
		return err
	})
	writing.Stop("v2")
	if err := w.TakeOut(); err != nil {
		t.Fatalf("take out v1: %v", err)
	}
	stop()
}
