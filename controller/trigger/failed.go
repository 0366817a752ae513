package trigger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/evolve"
)

// noteFailed has the failed migrations of a look end when this trigger first saw them failed, by its own
// clock: from there it waits before it tries again. Their conditions have the clock of the server that migrated,
// which may be behind, so that the wait seems to be over, each time anew. Only at the first look of a resource,
// as after an election, they are believed, unless they lie ahead: who waited before need not do so again.
func (c *Controller) noteFailed(l *look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, looked := c.failed[l.Resource]
	failed := map[types.UID]time.Time{}
	for i := range l.Migrations {
		m := &l.Migrations[i]
		if m.Phase != evolve.Failed {
			continue
		}
		uid := l.migrations[m.Name].UID
		seen, known := before[uid]
		switch {
		case known:
			m.Ended = seen
		case looked || m.Ended.After(l.Now):
			m.Ended = l.Now
		}
		failed[uid] = m.Ended
	}
	c.failed[l.Resource] = failed
}
