package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/join/roles"
)

// testForgedStorageState: an administrator cannot edit the fields of a StorageState on which
// the controllers rely, and the error says so. A hash that is edited nevertheless is not
// believed: the resource is migrated again, and the StorageState is true afterwards.
func testForgedStorageState(t *testing.T) {
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	objects := s.Objects()
	state := &migrationv1alpha1.StorageState{}
	key := types.NamespacedName{Name: "configmaps"}
	must(t, objects.Get(t.Context(), key, state))
	configMaps := schema.GroupResource{Resource: "configmaps"}
	migrations, err := migrationsOf(t.Context(), s, configMaps)
	must(t, err)
	before := sets.New[types.UID]()
	for _, m := range migrations {
		before.Insert(m.UID)
	}
	genuine := slices.Clone(state.Status.PersistedStorageVersionHashes)
	forged := state.DeepCopy()
	forged.Status.PersistedStorageVersionHashes = []string{"bogus"}
	if err := objects.Status().Patch(t.Context(), forged.DeepCopy(), client.MergeFrom(state)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "delete the StorageState") {
		t.Errorf("an administrator edits a StorageState: %v", err)
	}
	succeeded := &migrationv1alpha1.StorageVersionMigration{}
	succeeded.Name = "succeeded"
	succeeded.Spec.Resource = migrationv1alpha1.GroupVersionResource{Version: "v1", Resource: "secrets"}
	succeeded.Spec.Paused = true
	must(t, objects.Create(t.Context(), succeeded))
	edited := succeeded.DeepCopy()
	migrationv1alpha1.SetCondition(edited, migrationv1alpha1.MigrationSucceeded, "Forged", "by hand", metav1.Now())
	if err := objects.Status().Patch(t.Context(), edited, client.MergeFrom(succeeded)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "by Concord's servers alone") {
		t.Errorf("an administrator ends a migration: %v", err)
	}
	must(t, objects.Delete(t.Context(), succeeded))
	must(t, asControllers(t, s).Status().Patch(t.Context(), forged, client.MergeFrom(state)))
	cluster.Eventually(t, cluster.SettleTimeout, "the resource is migrated again", func(ctx context.Context) error {
		var again migrationv1alpha1.StorageState
		if err := objects.Get(ctx, key, &again); err != nil {
			return err
		}
		if again.UID == state.UID || !slices.Equal(again.Status.PersistedStorageVersionHashes, genuine) {
			return fmt.Errorf("the state is %+v", again.Status)
		}
		migrations, err := migrationsOf(ctx, s, configMaps)
		for _, m := range migrations {
			if !before.Has(m.UID) && migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(migrations)))
	})
	c.WaitSettled()
	c.Check()
}

// asControllers returns a client that acts as the user of the trigger, who may write StorageStates.
func asControllers(t *testing.T, s *cluster.Server) client.Client {
	t.Helper()
	config := rest.CopyConfig(s.Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: roles.Trigger.User(), Groups: []string{user.SystemPrivilegedGroup}}
	controllers, err := join.NewClient(config)
	must(t, err)
	return controllers
}

// TestForgedConsistently: a StorageState that is edited consistently, with hashes that fit, while
// objects are stored in v1, does not make Concord prune storedVersions. A census finds the objects,
// the stored set names v1 again, and storedVersions become [v2] when the objects are migrated.
func TestForgedConsistently(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{Args: "--migration-max-objects-per-second=20"}, "one")[0]
	createWidgets(t, "v1", s)
	fill(t, s, widgetsV1, stored)
	c.WaitSettled()
	storeWidgetsIn(t, s, "v2")
	begun := waitMigration(t, s, "has got somewhere", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return migrationv1alpha1.Resource(m) == widgets && m.Status.Progress != nil && m.Status.Progress.Done > 0 && !migrationv1alpha1.Final(m)
	})
	pauseMigration(t, s, begun, true)
	waitResting(t, s, begun.DeepCopy())
	if left := c.Encodings(widgets)[widgetEncoding("v1")]; left == 0 {
		t.Fatal("nothing is left to be migrated")
	}

	objects := asControllers(t, s)
	key := types.NamespacedName{Name: migrationv1alpha1.StateName(widgets)}
	forged := &migrationv1alpha1.StorageState{}
	must(t, objects.Get(t.Context(), key, forged))
	before := forged.DeepCopy()
	view := migrationv1alpha1.ViewState(forged)
	view.Stored = []agree.Encoding{widgetEncoding("v2")}
	migrationv1alpha1.SetState(forged, view, "Widget")
	must(t, objects.Status().Patch(t.Context(), forged, client.MergeFrom(before)))
	storedVersions := func(ctx context.Context) ([]string, error) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := objects.Get(ctx, types.NamespacedName{Name: widgets.String()}, crd)
		return crd.Status.StoredVersions, err
	}
	cluster.Eventually(t, cluster.SettleTimeout, "the stored set names v1 again", func(ctx context.Context) error {
		versions, err := storedVersions(ctx)
		if err != nil {
			return err
		}
		if !slices.Contains(versions, "v1") {
			t.Errorf("storedVersions are %v, and objects are stored in v1", versions)
		}
		state := &migrationv1alpha1.StorageState{}
		if err := objects.Get(ctx, key, state); err != nil {
			return err
		}
		if !slices.Contains(state.Status.PersistedEncodings, string(widgetEncoding("v1"))) {
			return fmt.Errorf("it is %v", state.Status.PersistedEncodings)
		}
		return nil
	})
	editMigration(t, s, begun, func(spec *migrationv1alpha1.StorageVersionMigrationSpec) {
		spec.Paused, spec.MaxObjectsPerSecond = false, ptr.To[int64](0)
	})
	c.WaitSettled()
	if versions, err := storedVersions(t.Context()); err != nil || !slices.Equal(versions, []string{"v2"}) {
		t.Errorf("storedVersions are %v, %v", versions, err)
	}
	wantEncoding(t, c, widgets, widgetEncoding("v2"), stored)
	// The audit of etcd's history is left out: it would find the forgery.
}

// TestOwnCRDsDeleted: the CRDs of Concord's own kinds are deleted while servers run. They are made
// again within a minute, and new migrations prove again how everything is stored.
func TestOwnCRDsDeleted(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two")
	c.WaitSettled()
	s := servers[0]
	objects := s.Objects()
	var states migrationv1alpha1.StorageStateList
	must(t, objects.List(t.Context(), &states))
	before := map[string]bool{}
	for _, state := range states.Items {
		before[string(state.UID)] = true
	}
	uids := map[string]string{}
	for _, crd := range append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...) {
		have := &apiextensionsv1.CustomResourceDefinition{}
		must(t, objects.Get(t.Context(), client.ObjectKeyFromObject(crd), have))
		uids[crd.Name] = string(have.UID)
		must(t, objects.Delete(t.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name}}))
	}
	var gone time.Time // when none of the old ones was left
	cluster.Eventually(t, 3*time.Minute, "the definitions are made again", func(ctx context.Context) error {
		var missing error
		for name, uid := range uids {
			have := &apiextensionsv1.CustomResourceDefinition{}
			switch err := objects.Get(ctx, client.ObjectKey{Name: name}, have); {
			case apierrors.IsNotFound(err):
				missing = err
			case err != nil:
				return err
			case string(have.UID) == uid:
				return fmt.Errorf("%s is still there", name)
			case !gone.IsZero() && have.CreationTimestamp.Sub(gone) > time.Minute:
				t.Errorf("%s was made again %v after all were gone", name, have.CreationTimestamp.Sub(gone))
			}
		}
		if gone.IsZero() {
			gone = time.Now()
		}
		return missing
	})
	cluster.Eventually(t, cluster.SettleTimeout, "all that is stored is proven anew", func(ctx context.Context) error {
		var now migrationv1alpha1.StorageStateList
		if err := objects.List(ctx, &now); err != nil {
			return err
		}
		if len(now.Items) < len(states.Items) {
			return fmt.Errorf("%d StorageStates of %d", len(now.Items), len(states.Items))
		}
		for _, state := range now.Items {
			if persisted := state.Status.PersistedStorageVersionHashes; before[string(state.UID)] || len(persisted) != 1 || strings.EqualFold(string(persisted[0]), "unknown") {
				return fmt.Errorf("%s, uid %s, has %v", state.Name, state.UID, persisted)
			}
		}
		return nil
	})
	c.WaitSettled()
	// The controllers watch the objects of the new CRDs.
	createWidgets(t, "v1", servers...)
	fill(t, s, widgetsV1, 20)
	storeWidgetsIn(t, s, "v2")
	c.WaitSettled()
	wantEncoding(t, c, widgets, widgetEncoding("v2"), 20)
	c.Check()
}
