package sim

import (
	"time"

	"k8s.io/utils/clock"
)

// epoch is when every world begins.
var epoch = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)

// processClock is a process's clock: it drifts and jumps. A timer is a sleep of the task
// that makes it, so that it has fired when the task sees it.
type processClock struct {
	p *Process
	// at is the world's time at which the clock was last set, to local.
	at    time.Duration
	local time.Time
	// rate is local time per time of the world.
	rate float64
	// peak is the latest time that the clock has shown before it was set back.
	peak time.Time
}

var _ clock.WithTicker = (*processClock)(nil)

// Now implements clock.PassiveClock. Clocks of servers are read to the microsecond.
func (c *processClock) Now() time.Time {
	elapsed := c.p.w.now - c.at
	if c.rate != 1 {
		elapsed = time.Duration(float64(elapsed) * c.rate)
	}
	return c.local.Add(elapsed).Truncate(time.Microsecond)
}

// set restarts the clock.
func (c *processClock) set(local time.Time, rate float64) {
	if now := c.Now(); now.After(c.peak) {
		c.peak = now
	}
	c.local, c.at, c.rate = local, c.p.w.now, rate
}

// Since implements clock.PassiveClock.
func (c *processClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// NewTimer implements clock.Clock.
func (c *processClock) NewTimer(d time.Duration) clock.Timer {
	c.p.sleep(d)
	fired := make(chan time.Time, 1)
	fired <- c.Now()
	return timer(fired)
}

// After implements clock.Clock.
func (c *processClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// Sleep implements clock.Clock.
func (c *processClock) Sleep(d time.Duration) { c.p.sleep(d) }

// Tick implements clock.Clock. Steps do not use it.
func (c *processClock) Tick(time.Duration) <-chan time.Time { panic("the simulation has no tickers") }

// NewTicker implements clock.WithTicker. Steps do not use it.
func (c *processClock) NewTicker(time.Duration) clock.Ticker { panic("the simulation has no tickers") }

type timer chan time.Time

// C implements clock.Timer.
func (t timer) C() <-chan time.Time { return t }

// Stop implements clock.Timer.
func (t timer) Stop() bool { return false }

// Reset implements clock.Timer.
func (t timer) Reset(time.Duration) bool { panic("the simulation's timers fire once") }
