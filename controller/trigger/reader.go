package trigger

import (
	"context"

	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// seen is what the watches of a run hold.
type seen struct {
	states     cache.Store
	migrations cache.Indexer
}

// Reader is other, but for lists of StorageStates and of migrations: these are as Run's
// watches have them, while it runs, and are not read from etcd. All objects are listed then,
// whatever the options.
func (c *Controller) Reader(other client.Reader) client.Reader { return reader{other, c} }

type reader struct {
	client.Reader
	of *Controller
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if kept := r.of.kept(); kept != nil {
		switch into := list.(type) {
		case *migrationv1alpha1.StorageStateList:
			into.Items = items[migrationv1alpha1.StorageState](kept.states)
			return nil
		case *migrationv1alpha1.StorageVersionMigrationList:
			into.Items = items[migrationv1alpha1.StorageVersionMigration](kept.migrations)
			return nil
		}
	}
	return r.Reader.List(ctx, list, options...)
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
