package trigger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/evolve"
)

// failure is when a migration was first seen to have failed, and of which generation its resource's definition was then.
type failure struct {
	at         time.Time
	generation int64
}

// noteFailed has the failed migrations of a look end when this trigger first saw them failed, by its own
// clock: from there it waits before it tries again. Their conditions have the clock of the server that migrated,
// which may be behind, so that the wait seems to be over, each time anew. Only at the first look of a resource,
// as after an election, they are believed, unless they lie ahead: who waited before need not do so again.
// Where the definition has changed since, that may mend what it failed for, such as a conversion webhook's caBundle.
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
