package trigger

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// ErrNotStored says that the values of a resource cannot be counted because another server stores them, for example an
// aggregated API server. Then the migration's own result counts.
var ErrNotStored = errors.New("the resource is not stored here")

// Count counts the stored values of a resource for a Result that asks for it, so that the next
// Step can decide. It takes as long as it takes to read all of them.
func (c *Controller) Count(ctx context.Context, gr schema.GroupResource, target evolve.Target) error {
	found, err := c.cfg.Census(ctx, gr, target)
	switch {
	case errors.Is(err, ErrNotStored):
		found = nil
	case err != nil:
		return fmt.Errorf("count what is stored of %s: %w", gr, err)
	case len(found) > 0:
		c.cfg.Logger.Info("Objects are stored in encodings that should be gone: they are migrated, and nothing is pruned before", "resource", gr.String(), "found", agree.Join(found), "expected", string(target.Encoding))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted[gr] = evolve.Census{Of: target, Found: found}
	return nil
}

// notice discards counts from before etcd was restored from a backup: an earlier agreement returns with the same
// epoch, and with it objects in other encodings. It recognizes a restore by a StorageState that is older than the one
// read before.
func (c *Controller) notice(gr schema.GroupResource, state *migrationv1alpha1.StorageState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == nil {
		delete(c.counted, gr)
		return
	}
	if older, err := resourceversion.CompareResourceVersion(state.ResourceVersion, c.newest[gr]); err == nil && older < 0 {
		delete(c.counted, gr)
	}
	c.newest[gr] = state.ResourceVersion
}

// census returns the result of the count for a target; nil if there was no count. A count that found other encodings
// is used once: after the migration that follows there is a new count. A count that found none stays valid.
func (c *Controller) census(gr schema.GroupResource, target evolve.Target) *evolve.Census {
	c.mu.Lock()
	defer c.mu.Unlock()
	census, ok := c.counted[gr]
	if !ok || census.Of != target {
		return nil
	}
	if len(census.Found) > 0 {
		delete(c.counted, gr)
	}
	return &census
}
