package stock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/stock"
)

// TestFlip: the storage version of a custom resource changes from v1 to v2 while clients write,
// and the controllers are killed in the middle. All objects are migrated, this is proven,
// storedVersions is pruned, and v1 can be removed.
func TestFlip(t *testing.T) {
	const objects = 500
	c := beside.New(t, itself.Programs)
	a, b := c.APIServer("a"), c.APIServer("b")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	apply(w, "v1")
	config := itself.Quick()
	config.LeaderElect, config.MaxObjectsPerSecond, config.CleanFields = true, 100, true
	running := map[string]*cluster.Process{}
	for _, name := range []string{"first", "second"} {
		running[name] = a.Controllers(name, config)
	}
	w.AwaitStored(beside.V1, beside.V1)
	writing := w.Write(objects, a, b)
	w.Store("v2")
	beside.Eventually(t, beside.Patience, "a migration is on its way", func(ctx context.Context) error {
		all, err := w.Migrations(ctx)
		for i := range all {
			if p := all[i].Status.Progress; p != nil && p.Done > 0 {
				by := all[i].Annotations[migrationv1alpha1.ClaimedByAnnotation]
				if p, ok := running[by]; ok {
					p.Kill()
					return nil
				}
				return fmt.Errorf("it is claimed by %q", by)
			}
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	w.AwaitStored(beside.V2, beside.V2)
	writing.Stop("v2")
	w.AwaitPruned(objects)
	if err := w.TakeOut(); err != nil {
		t.Errorf("v1 cannot be taken out: %v", err)
	}
	v2 := w.In("v2")
	if list, err := b.Dynamic().Resource(v2).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != objects {
		t.Errorf("without v1: %v", err)
	}
	beside.Eventually(t, beside.Patience, "managedFields name no version that is gone", func(ctx context.Context) error {
		list, err := a.Dynamic().Resource(v2).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, w := range list.Items {
			for _, f := range w.GetManagedFields() {
				if f.APIVersion == beside.V1 {
					return fmt.Errorf("%s: %+v", w.GetName(), f)
				}
			}
		}
		return nil
	})
	apply(w, "v2")
	for name, p := range running {
		if memory, err := p.Run().Resident(); err == nil {
			t.Logf("memory of the controllers that are left (%s): %d kB", name, memory>>10)
		}
	}
}

// apply writes a widget by server-side apply.
func apply(w *beside.Widgets, version string) {
	t := w.Server.Cluster.T
	t.Helper()
	patch := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Widget","metadata":{"name":"w0000"},"applied":"%s"}`, beside.Group, version, version)
	_, err := w.Server.Dynamic().Resource(w.In(version)).Namespace(beside.Namespace).
		Patch(t.Context(), beside.ObjectName(0), types.ApplyPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "applier", Force: ptr.To(true)})
	if err != nil {
		t.Errorf("apply in %s: %v", version, err)
	}
}

// TestPaused: a paused kube-apiserver does not say what it stores. Until it is resumed nothing
// is agreed on, migrated or pruned, and the StorageState names this server.
func TestPaused(t *testing.T) {
	const objects = 100
	c := beside.New(t, itself.Programs)
	a, b := c.APIServer("a"), c.APIServer("b")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	a.Controllers("controllers", itself.Quick())
	w.AwaitStored(beside.V1, beside.V1)
	b.Pause()
	w.Store("v2")
	rounds := 0
	beside.Eventually(t, beside.Patience, "nothing is agreed on", func(ctx context.Context) error {
		state, err := w.State(ctx)
		if err != nil {
			return err
		}
		if s := state.Status; s.CurrentEncoding != migrationv1alpha1.Unknown || !strings.Contains(s.Message, "does not answer") || !slices.Contains(s.PersistedEncodings, beside.V2) {
			return fmt.Errorf("the state is %+v", s)
		}
		all, err := w.Migrations(ctx)
		if err != nil || len(all) > 0 {
			t.Fatalf("%d migrations, %v", len(all), err)
		}
		if versions, err := w.StoredVersions(ctx); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
			t.Fatalf("storedVersions are %v, %v", versions, err)
		}
		if rounds++; rounds < 50 { // ten seconds and more, in which it would have been migrated
			return errors.New("looking on")
		}
		return nil
	})
	b.Resume()
	w.AwaitStored(beside.V2, beside.V2)
	w.AwaitPruned(objects)
}

// TestBadObject: an object that cannot be written is named, all others are migrated, and
// storedVersions keeps the version that this object is in.
func TestBadObject(t *testing.T) {
	const objects, bad = 100, 42
	c := beside.New(t, itself.Programs)
	a := c.APIServer("a")
	w := a.Define("widgets", false, map[string]apiextensionsv1.JSONSchemaProps{"v2": {
		Required: []string{"mandatory"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{"mandatory": {Type: "string"}},
	}})
	w.Fill(objects, func(i int, w *unstructured.Unstructured) {
		if i == bad {
			delete(w.Object, "mandatory")
		}
	})
	config := itself.Quick()
	config.Settings.PruneAfter = 0
	a.Controllers("controllers", config)
	w.AwaitStored(beside.V1, beside.V1)
	w.Store("v2")
	beside.Eventually(t, beside.Patience, "the migration fails for one object", func(ctx context.Context) error {
		all, err := w.Migrations(ctx)
		for _, m := range all {
			failed := migrationv1alpha1.True(&m, migrationv1alpha1.MigrationFailed)
			if failed == nil || failed.Reason != migrationv1alpha1.ReasonObjectsFailed || len(m.Status.Failures) != 1 {
				err = errors.Join(err, fmt.Errorf("%s: %+v", m.Name, m.Status))
				continue
			}
			if f := m.Status.Failures[0]; f.Name != beside.ObjectName(bad) || f.Reason != migrationv1alpha1.FailureRejected || !strings.Contains(f.Message, "mandatory") {
				t.Errorf("named is %+v", f)
			}
			if p := m.Status.Progress; p.Done != objects-1 || p.Failed != 1 {
				t.Errorf("progress is %+v", p)
			}
			return nil
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	if counts, err := w.Stored(t.Context(), 0); err != nil || counts[beside.V1] != 1 || counts[beside.V2] != objects-1 {
		t.Errorf("stored are %v, %v", counts, err)
	}
	if versions, err := w.StoredVersions(t.Context()); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v, %v", versions, err)
	}
	if err := w.TakeOut(); err == nil {
		t.Error("v1 could be taken out although an object is stored in it")
	}
	// When the object is corrected, everything else follows by itself.
	patch := []byte(`{"mandatory":"at last"}`)
	if _, err := a.Dynamic().Resource(w.In("v1")).Namespace(beside.Namespace).Patch(t.Context(), beside.ObjectName(bad), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.AwaitPruned(objects)
}

// TestMirror: with --mirror a migration of Kubernetes' own API is done, and its status says so.
func TestMirror(t *testing.T) {
	const objects = 20
	c := beside.New(t, itself.Programs)
	a := c.APIServer("a", "--runtime-config=storagemigration.k8s.io/v1=true")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	config := itself.Quick()
	config.Mirror = stock.MirrorAlways
	a.Controllers("controllers", config)
	w.AwaitStored(beside.V1, beside.V1)
	migrations := a.Kube().StoragemigrationV1().StorageVersionMigrations()
	_, err := migrations.Create(t.Context(), &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: beside.Group, Resource: w.Plural}},
	}, metav1.CreateOptions{})
	must(t, err)
	beside.Eventually(t, beside.Patience, "it succeeds", func(ctx context.Context) error {
		m, err := migrations.Get(ctx, "mine", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(m.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)) {
			err = fmt.Errorf("its status is %+v", m.Status)
		}
		return err
	})
}
