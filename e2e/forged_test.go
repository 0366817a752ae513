package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// A hash that somebody edits in a StorageState is not believed: the resource is migrated
// again, and the state then says what is true.
func TestForgedStorageState(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	objects := s.Objects()
	state := &migrationv1alpha1.StorageState{}
	key := types.NamespacedName{Name: "configmaps"}
	if err := objects.Get(t.Context(), key, state); err != nil {
		t.Fatal(err)
	}
	var migrations migrationv1alpha1.StorageVersionMigrationList
	if err := objects.List(t.Context(), &migrations); err != nil {
		t.Fatal(err)
	}
	before := sets.New[types.UID]()
	for _, m := range migrations.Items {
		before.Insert(m.UID)
	}
	genuine := slices.Clone(state.Status.PersistedStorageVersionHashes)
	forged := state.DeepCopy()
	forged.Status.PersistedStorageVersionHashes = []string{"bogus"}
	if err := objects.Status().Patch(t.Context(), forged, client.MergeFrom(state)); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, cluster.SettleTimeout, "the resource is migrated again", func(ctx context.Context) error {
		var again migrationv1alpha1.StorageState
		if err := objects.Get(ctx, key, &again); err != nil {
			return err
		}
		if again.UID == state.UID || !slices.Equal(again.Status.PersistedStorageVersionHashes, genuine) {
			return fmt.Errorf("the state is %+v", again.Status)
		}
		var migrations migrationv1alpha1.StorageVersionMigrationList
		if err := objects.List(ctx, &migrations); err != nil {
			return err
		}
		for _, m := range migrations.Items {
			if migrationv1alpha1.Resource(&m).Resource == "configmaps" && !before.Has(m.UID) && migrationv1alpha1.True(&m, migrationv1alpha1.MigrationSucceeded) != nil {
				return nil
			}
		}
		return fmt.Errorf("there are the migrations %v", migrations.Items)
	})
	c.WaitSettled()
	c.Check()
}
