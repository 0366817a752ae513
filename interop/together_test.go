package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/stock"
)

// TestTogether: kube-controller-manager's own migrator migrates the same resource at the same
// time, while clients write. No write is lost, and storedVersions never lacks a version in which
// objects are stored: the guard refuses kube-controller-manager, whose migration ends first, to remove v1.
func TestTogether(t *testing.T) {
	const objects = 1000
	c := newCluster(t)
	a := guarded(t, c)
	b := c.APIServer("b")
	// kube-controller-manager's migrator begins only when its garbage collector knows the resource, which takes up to
	// 82 s (TestMirrorAuto). Ours is so slow at first that it is on its way still when the other one has ended.
	slow := deployed(a, nil, func(config *stock.Config) { config.MaxObjectsPerSecond = 1 })
	manager := controllerManager(t, b, withMigrator, "--leader-elect=false")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	stop := beside.Guard(t, c.Raw, w.In("v1").GroupResource(), 0)
	w.Store("v2")
	ours := begun(t, w)
	writing := w.Write(objects/2, a, b) // so that the migrators have to write the other half
	order(t, w)
	beside.Eventually(t, 2*beside.Patience, "the in-tree migration ends", func(ctx context.Context) error {
		now, err := conditions(ctx, t, w)
		if _, ok := now["Succeeded"]; err == nil && !ok {
			err = fmt.Errorf("its conditions are %v", now)
		}
		return err
	})
	counts, err := w.Stored(t.Context(), 0)
	must(t, err)
	must(t, a.Objects().Get(t.Context(), client.ObjectKeyFromObject(ours), ours))
	// Neither ours nor the clients have written all objects.
	if p := ours.Status.Progress; counts[beside.V2] != objects || p.Done >= objects/2 || migrationv1alpha1.True(ours, migrationv1alpha1.MigrationRunning) == nil {
		t.Errorf("the in-tree migration has ended, stored are %v, and ours is %+v", counts, ours.Status)
	}
	beside.Eventually(t, beside.Patience, "the guard refuses kube-controller-manager to remove v1", func(context.Context) error {
		if !strings.Contains(manager.Output(), "concord-stored-versions") {
			return errors.New("its log does not tell of it")
		}
		return nil
	})

	slow.Terminate()
	deployed(a, nil)
	w.AwaitPruned(objects)
	if writing.Stop() == 0 {
		t.Error("nothing was written meanwhile")
	}
	if err := w.TakeOut(); err != nil {
		t.Fatalf("take out v1: %v", err)
	}
	stop()
}

// begun waits until a migration has written some objects, and returns it.
func begun(t testing.TB, w *beside.Widgets) (m *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	beside.Eventually(t, beside.Patience, "a migration is on its way", func(ctx context.Context) error {
		all, err := w.Migrations(ctx)
		for i := range all {
			if p := all[i].Status.Progress; p != nil && p.Done > 0 && p.Done < p.Total {
				m = &all[i]
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	t.Logf("%d of %d objects are done", m.Status.Progress.Done, m.Status.Progress.Total)
	return m
}
