package trigger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/evolve"
)

// failure records when a migration was first seen to have failed, and the generation of its resource's
// CustomResourceDefinition at that time.
type failure struct {
	at         time.Time
	generation int64
}

// noteFailed sets the end of failed migrations to the time when this trigger first saw the failure, by its own clock,
// and the wait before the next try begins there. The conditions have the clock of the server that migrated, which may
// be behind, so that the wait would always seem to be over. Only at the first look at a resource, for example after an
// election, conditions are believed, unless their time is in the future: a wait that is over need not be repeated. If
// the CustomResourceDefinition has changed since the failure, that may have repaired the cause, such as a conversion
// webhook's caBundle.
func (c *Controller) noteFailed(l *look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, looked := c.failed[l.Resource]
	failed := map[types.UID]failure{}
	var generation int64
	if l.crd != nil {
		generation = l.crd.Generation
	}
	for i := range l.Migrations {
		m := &l.Migrations[i]
		if m.Phase != evolve.Failed {
			continue
		}
		uid := l.migrations[m.Name].UID
		seen, known := before[uid]
		if !known {
			seen = failure{m.Ended, generation}
			if looked || m.Ended.After(l.Now) {
				seen.at = l.Now
			}
		}
		m.Ended, m.Mended = seen.at, seen.generation != generation
		failed[uid] = seen
	}
	c.failed[l.Resource] = failed
}
