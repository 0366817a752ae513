package trigger

import (
	"time"

	"github.com/concord-dev/concord/evolve"
)

// silence is a past period in which a server without reports took part: the last epoch of it.
type silence struct {
	of evolve.Ref
	// since is when it was first seen to be over, by Config.Elapsed.
	since time.Duration
}

// settling returns how much longer no migration of the resource may begin. It is called after
// everything was read: so the silence was over no later than when it is first noted here. Nothing but
// this process's own clock counts, and only the time in which it was this process that led.
func (c *Controller) settling(o evolve.Observation) time.Duration {
	of, over := evolve.Silenced(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !over || c.cfg.Settle == 0 {
		delete(c.silences, o.Resource)
		return 0
	}
	now := c.cfg.Elapsed()
	if c.silences[o.Resource].of != of {
		c.silences[o.Resource] = silence{of: of, since: now}
		c.cfg.Logger.V(1).Info("No migration begins yet: a server that does not report has gone, and may still complete writes", "resource", o.Resource.String(), "for", c.cfg.Settle)
	}
	return max(c.silences[o.Resource].since+c.cfg.Settle-now, 0)
}
