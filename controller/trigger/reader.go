package trigger

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Reader returns a reader that lists StorageStates and migrations from Run's watches instead of etcd, and passes all
// other reads to other. These lists wait until Run has read everything once, and return all objects, whatever the
// options.
func (c *Controller) Reader(other client.Reader) client.Reader { return reader{other, c} }

type reader struct {
	client.Reader
	of *Controller
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch into := list.(type) {
	case *migrationv1alpha1.StorageStateList:
		kept, err := r.of.awaitKept(ctx)
		if err != nil {
			return err
		}
		into.Items = items[migrationv1alpha1.StorageState](kept.states)
		return nil
	case *migrationv1alpha1.StorageVersionMigrationList:
		kept, err := r.of.awaitKept(ctx)
		if err != nil {
			return err
		}
		into.Items = items[migrationv1alpha1.StorageVersionMigration](kept.migrations)
		return nil
	}
	return r.Reader.List(ctx, list, options...)
}

func (c *Controller) awaitKept(ctx context.Context) (kept *seen, err error) {
	err = wait.PollUntilContextCancel(ctx, keptPoll, true, func(context.Context) (bool, error) {
		kept = c.kept()
		return kept != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("the trigger has not read StorageStates and migrations yet: %w", err)
	}
	return kept, nil
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
