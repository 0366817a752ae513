package trigger

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch"
)

// keptPoll is how often it is looked for a Run that has read everything.
const keptPoll = 50 * time.Millisecond

// seen holds the stores of two of a run's watches.
type seen struct {
	states     cache.Store
	migrations cache.Indexer
}

// of lists the migrations of a resource.
func (s seen) of(gr schema.GroupResource) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	return listwatch.Indexed[*migrationv1alpha1.StorageVersionMigration](s.migrations, byResource, gr.String())
}

// Kept returns all StorageStates and migrations from Run's watches, instead of etcd. It waits until Run has read everything once.
func (c *Controller) Kept(ctx context.Context) ([]migrationv1alpha1.StorageState, []migrationv1alpha1.StorageVersionMigration, error) {
	var kept *seen
	err := wait.PollUntilContextCancel(ctx, keptPoll, true, func(context.Context) (bool, error) {
		kept = c.kept()
		return kept != nil, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the trigger has not read StorageStates and migrations yet: %w", err)
	}
	return items[migrationv1alpha1.StorageState](kept.states), items[migrationv1alpha1.StorageVersionMigration](kept.migrations), nil
}

// kept is nil while no run has read all that it watches.
func (c *Controller) kept() *seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return nil
	}
	return c.current.seen
}

func items[T any, P interface {
	*T
	DeepCopy() *T
}](store cache.Store) []T {
	all := store.List()
	copies := make([]T, len(all))
	for i := range all {
		copies[i] = *all[i].(P).DeepCopy()
	}
	return copies
}
