package random

import (
	"math/rand/v2"
	"slices"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// newHostedChooser makes a chooser of a world with a host.
func newHostedChooser(w *sim.World, r *rand.Rand) *chooser {
	c := newChooser(w, r, r)
	c.temper.silent, c.temper.stock, c.temper.faults[script.Key] = 0, 0, 0
	// A replica takes many more steps than another server until it writes, so there are fewer faults.
	bound := r.IntN(3)
	for v := range c.temper.faults {
		if v := script.Verb(v); v != script.Start && v != script.Pass {
			c.temper.faults[v] = min(c.temper.faults[v], bound)
		}
	}
	c.temper.faults[script.Round] = r.IntN(150)
	oldest := 1 + r.IntN(len(object.Releases)-2) // the next one stores another version
	c.temper.releases = object.Releases[oldest:min(oldest+2+r.IntN(2), len(object.Releases))]
	c.temper.writes += 5
	c.temper.roll, c.temper.host = 30+r.IntN(100), 15+r.IntN(35)
	c.host = newChooser(w.Host(), r, r)
	for v := range c.host.temper.faults {
		if v := script.Verb(v); v != script.Start && r.IntN(2) == 0 || v == script.Pass || v == script.Key {
			c.host.temper.faults[v] = 0
		} else if v != script.Start {
			c.host.temper.faults[v] = min(c.host.temper.faults[v], bound)
		}
	}
	c.host.temper.put, c.host.temper.admin = 100, max(c.host.temper.admin, r.IntN(3))
	whole := r.IntN(90)
	c.temper.whole, c.host.temper.whole = whole, whole
	return c
}

// rollsTo is the release that replicas are brought to now: another one from time to time.
func (c *chooser) rollsTo() object.Release {
	return c.temper.releases[c.w.Steps()/c.temper.roll%len(c.temper.releases)]
}

// offerHostFaults offers to replace a replica by one of another release, and to cut it off from the host or reconnect
// it.
func (c *chooser) offerHostFaults(p *sim.Process) {
	if p.Release != c.rollsTo() {
		c.add(3, script.Event{Do: script.Kill, Slot: p.Slot})
		if !p.Leaving() {
			c.add(12, script.Event{Do: script.Stop, Slot: p.Slot})
		}
	}
	if p.CutFromHost() {
		c.add(2, script.Event{Do: script.Heal, Slot: p.Slot, What: script.CutFromHost})
	} else {
		c.add(1+c.temper.faults[script.Cut], script.Event{Do: script.Cut, Slot: p.Slot, What: script.CutFromHost})
	}
}

// offerHosted offers what administrators do where an aggregated API is all there is.
func (c *chooser) offerHosted() {
	c.add(c.temper.faults[script.Round], script.Event{Do: script.Round})
	if c.temper.admin == 0 {
		return
	}
	deed := deeds[c.IntN(len(deeds))][slices.Index(object.All[:], object.Things)]
	if c.host != nil || c.IntN(3) == 0 {
		deed = "delete version things"
	}
	c.add(c.temper.admin, script.Event{Do: script.Admin, What: deed})
}
