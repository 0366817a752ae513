package stock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
)

// testFlip: the storage version of a custom resource changes from v1 to v2 while clients write,
// and the controllers are killed in the middle. All objects are migrated, this is proven,
// storedVersions is pruned, and v1 can be removed.
func testFlip(t *testing.T, a, b *beside.APIServer, running map[string]*cluster.Process) {
	const objects = 5000
	w := a.Define("flips", true, nil)
	w.Fill(objects, nil)
	apply(w, "v1")
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
	if writing.Stop() == 0 {
		t.Error("nothing was written meanwhile")
	}
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

// testStates: every resource that discovery shows as stored has a StorageState, agreed on the version that discovery
// shows, and nothing else has one.
func testStates(t *testing.T, a *beside.APIServer) {
	client := discovery.NewDiscoveryClient(a.Kube().Discovery().RESTClient())
	client.UseLegacyDiscovery = true // the aggregated form has no hashes
	beside.Eventually(t, beside.Patience, "the StorageStates are those of discovery", func(ctx context.Context) error {
		_, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
		if err != nil {
			return err
		}
		hashes := map[string]string{} // by name
		for _, list := range lists {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			must(t, err)
			for _, r := range list.APIResources {
				if r.StorageVersionHash != "" && gv.Group != "events.k8s.io" { // its events are the core group's
					hashes[migrationv1alpha1.StateName(gv.WithResource(r.Name).GroupResource())] = r.StorageVersionHash
				}
			}
		}
		states := &migrationv1alpha1.StorageStateList{}
		if err := a.Objects().List(ctx, states); err != nil {
			return err
		}
		shown := len(hashes)
		for _, state := range states.Items {
			if hash := state.Status.CurrentStorageVersionHash; hashes[state.Name] != hash {
				err = errors.Join(err, fmt.Errorf("%s: discovery has the hash %q, the StorageState %q: %s", state.Name, hashes[state.Name], hash, state.Status.Message))
			}
			delete(hashes, state.Name)
		}
		if len(hashes) > 0 || shown < 50 {
			err = errors.Join(err, fmt.Errorf("of %d resources these have no StorageState: %v", shown, slices.Sorted(maps.Keys(hashes))))
		}
		return err
	})
}

// apply writes a widget by server-side apply.
func apply(w *beside.Widgets, version string) {
	t := w.Server.Cluster.T
	t.Helper()
	patch := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":%q,"metadata":{"name":"w0000"},"applied":"%s"}`, beside.Group, version, w.Object(0).GetKind(), version)
	_, err := w.Server.Dynamic().Resource(w.In(version)).Namespace(beside.Namespace).
		Patch(t.Context(), beside.ObjectName(0), types.ApplyPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "applier", Force: ptr.To(true)})
	if err != nil {
		t.Errorf("apply in %s: %v", version, err)
	}
}

// testPaused: a paused kube-apiserver does not say what it stores. Until it is resumed nothing
// is agreed on, migrated or pruned, and the StorageState names this server.
func testPaused(t *testing.T, a, b *beside.APIServer) {
	const objects = 5000
	w := a.Define("pauseds", true, nil)
	w.Fill(objects, nil)
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

// testBadObject: an object that cannot be written is named, all others are migrated, and
// storedVersions keeps the version that this object is in.
func testBadObject(t *testing.T, a *beside.APIServer) {
	const objects, bad = 100, 42
	w := a.Define("bads", false, map[string]apiextensionsv1.JSONSchemaProps{"v2": {
		Required: []string{"mandatory"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{"mandatory": {Type: "string"}},
	}})
	w.Fill(objects, func(i int, w *unstructured.Unstructured) {
		if i == bad {
			delete(w.Object, "mandatory")
		}
	})
	w.AwaitStored(beside.V1, beside.V1)
	w.Store("v2")
	w.AwaitFailed(objects, beside.ObjectName(bad), migrationv1alpha1.FailureRejected, "mandatory")
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
