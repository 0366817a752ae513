package random

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// chooser chooses a world's next event. Every seed has a temper of its own: which faults
// there are, how often, and how patiently one task is followed.
type chooser struct {
	*rand.Rand
	w      *sim.World
	temper temper
	last   *sim.Task
	// rewriting is a resource that some server rewrites just now, nil if there is none.
	rewriting *object.Resource
	// live says which resources have a first and a second migration that is not final, if
	// it was asked since the last event.
	live  [len(object.All)][2]bool
	asked bool
	// host chooses the events of the host, nil if there is none.
	host *chooser
	// found are the events to choose from.
	found []offer
	sum   int // of their weights
}

// offer is an event to choose, as likely as it weighs.
type offer struct {
	weight int
	script.Event
}

// temper holds a seed's preferences. Weights are relative to those of the normal course of events; 0 means never.
type temper struct {
	patience int // per cent of the time with which the same task goes on
	lose     int // per mille of calls whose answer is lost, and so on
	fail     int
	late     int
	absent   int
	losePut  int // per mille of the transactions of rewrites whose answer is lost, besides
	put      int // weight of a rewrite's next step
	lag      int // weight of a watch's events: little means that they lag
	faults   [script.Verbs]int
	tick     time.Duration
	objects  int
	admin    int
	writes   int
	host     int // per cent of the events that are the host's
	roll     int // how many events it is to the next roll of the replicas
	whole    int // per cent of the calls after which the task runs to its end undisturbed
	silent   int // per cent of the servers that are started with their gate off
	stock    int // and of the others, of those without Concord
	// releases are the releases with which servers are started.
	releases []object.Release
}

// newChooser makes a chooser. stock decides on stock servers only, so that worlds without
// them are as they were before there were any.
func newChooser(w *sim.World, r, stock *rand.Rand) *chooser {
	c := &chooser{Rand: r, w: w}
	t := &c.temper
	some := func(n int) int {
		if r.IntN(2) == 0 {
			return 0
		}
		return 1 + r.IntN(n)
	}
	t.patience = r.IntN(95)
	t.lose, t.fail, t.late, t.absent = some(60), some(60), some(60), some(30)
	t.lag = 1 + r.IntN(30)
	for _, v := range []script.Verb{script.Start, script.Stop, script.Kill, script.Pause, script.Cut, script.Jump, script.Lead, script.Unlead, script.Etcd, script.Relist, script.Define, script.Undefine} {
		t.faults[v] = some(4)
	}
	t.faults[script.Start] = 4 + r.IntN(10)
	t.admin = some(4)
	t.faults[script.Pass] = some(6)
	oldest := r.IntN(len(object.Releases))
	t.releases = object.Releases[oldest:min(oldest+1+r.IntN(3), len(object.Releases))]
	t.tick = []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second}[r.IntN(3)]
	t.objects = 1 + r.IntN(3)
	t.writes = 1 + r.IntN(20)
	if r.IntN(8) == 0 {
		t.silent = 10 + r.IntN(40)
	}
	t.faults[script.Key] = some(3)
	if stock.IntN(10) == 0 {
		t.stock = 10 + stock.IntN(40)
	}
	return c
}

// rewrite is the temper of a seed whose rewrites have several transactions under way: there is
// more to rewrite, and more often, and transactions lose their answers.
func (t *temper) rewrite(r *rand.Rand) {
	t.objects = 3 + r.IntN(4)
	t.writes = 8 + r.IntN(20)
	t.losePut = r.IntN(400)
	t.faults[script.Define] = 1 + r.IntN(4)
	t.admin = max(t.admin, r.IntN(4))
	t.put = 50 + r.IntN(300)
	t.tick = min(t.tick, time.Second)
	for _, v := range []script.Verb{script.Stop, script.Kill, script.Cut, script.Undefine} {
		t.faults[v] = min(t.faults[v], 1)
	}
}

// add offers an event.
func (c *chooser) add(weight int, e script.Event) {
	if weight <= 0 {
		return
	}
	if len(c.found) == cap(c.found) {
		c.found = slices.Grow(c.found, 64)
	}
	c.found = c.found[:len(c.found)+1]
	found := &c.found[len(c.found)-1]
	found.weight, found.Event = weight, e
	c.sum += weight
}

// next returns an event that is likely to be possible.
func (c *chooser) next() script.Event {
	if c.host != nil && c.IntN(100) < c.temper.host {
		e := c.host.next()
		e.Host = true
		return e
	}
	if t := c.last; t != nil && t.Asks() && t.CanFail() && c.IntN(100) < c.temper.patience {
		return c.goOn(t)
	}
	c.found, c.sum, c.asked = c.found[:0], 0, false
	c.rewriting = c.w.Rewritten()
	for slot := range c.w.Slots() {
		p := c.w.Process(slot)
		if p == nil || p.Gone() {
			r := c.temper.releases[c.IntN(len(c.temper.releases))]
			what := r.Name
			if c.host != nil && c.IntN(5) > 0 {
				what = c.rollsTo().Name
			}
			if c.temper.silent > 0 && c.IntN(100) < c.temper.silent {
				what += script.GateOff
			} else if c.temper.stock > 0 && c.IntN(100) < c.temper.stock {
				what += script.WithoutConcord
			}
			c.add(c.temper.faults[script.Start], script.Event{Do: script.Start, Slot: slot, What: what})
			if p != nil && c.temper.admin > 0 && p.Registered() {
				c.add(1, script.Event{Do: script.Admin, What: deleteLease[slot]})
				if p.IsReplica() {
					c.add(1, script.Event{Do: script.Admin, What: "delete host lease " + script.SlotName(slot)})
				}
			}
			c.offerDismissal(slot)
			continue
		}
		c.offerDismissal(slot)
		c.offerTasks(p)
		c.offerFaults(p)
	}
	c.offerWorld()
	n := c.IntN(c.sum)
	for i := range c.found {
		if n -= c.found[i].weight; n < 0 {
			return c.chosen(c.found[i].Event)
		}
	}
	return script.Event{Do: script.Tick, For: time.Second}
}

// chosen fills in the fields that are decided only for the event that was chosen.
func (c *chooser) chosen(e script.Event) script.Event {
	switch e.Do {
	case script.Do:
		t := c.w.Process(e.Slot).Task(e.Role)
		c.last = t
		return c.goOn(t)
	case script.Run:
		if e.Role >= script.Writing1 {
			e.What = c.write()
		}
	}
	return e
}

// goOn says how a task's call fares.
func (c *chooser) goOn(t *sim.Task) script.Event {
	e := script.Event{Do: script.Do, Slot: t.Slot(), Role: t.Role()}
	if !t.Asks() {
		return e
	}
	if c.temper.whole > 0 && c.IntN(100) < c.temper.whole {
		e.Do = script.Finish
		return e
	}
	lose, late := c.temper.lose, c.temper.late
	if t.Role() >= script.Putting1 {
		lose, late = lose+c.temper.losePut, late+c.temper.losePut
	}
	n := c.IntN(1000)
	for _, f := range []struct {
		verb script.Verb
		rate int
	}{{script.Lose, lose}, {script.Fail, c.temper.fail}, {script.Apply, late}, {script.Absent, c.temper.absent}} {
		if n -= f.rate; n < 0 {
			e.Do = f.verb
			if t.Applied() && f.verb != script.Lose {
				e.Do = script.Do
			}
			if e.Do == script.Lose && t.AsksEtcd() {
				e.What = script.LostAnswers[c.IntN(len(script.LostAnswers))]
			}
			return e
		}
	}
	return e
}

func (c *chooser) write() string {
	verbs := []string{"create", "create", "create", "update", "update", "stale", "delete", "poison", "poison"}
	n := len(verbs)
	if c.temper.admin == 0 {
		n -= 2
	}
	r := object.All[c.IntN(len(object.All))]
	if c.host != nil { // through the API one that cannot be written ends every attempt
		n, r = min(n, len(verbs)-2), object.Things
	}
	if c.rewriting != nil && c.IntN(4) > 0 {
		r = c.rewriting
	}
	return fmt.Sprintf("%s %s/%c", verbs[c.IntN(n)], r.Name, 'a'+c.IntN(c.temper.objects))
}

func (c *chooser) offerTasks(p *sim.Process) {
	slot := p.Slot
	for r := range script.Roles {
		if t := p.Task(r); t != nil {
			switch {
			case t.CanGoOn():
				weight := 60
				if r.Rewrites() && c.temper.put > 0 {
					weight = c.temper.put
				}
				c.add(weight, script.Event{Do: script.Do, Slot: slot, Role: r})
			case t.Asks() && t.CanFail():
				c.add(10, script.Event{Do: script.Fail, Slot: slot, Role: r})
				c.add(10, script.Event{Do: script.Lose, Slot: slot, Role: r})
			case t.Asks() && t.CanApply():
				c.add(2, script.Event{Do: script.Apply, Slot: slot, Role: r})
			}
			continue
		}
		if !p.CanBegin(r) {
			continue
		}
		switch r {
		case script.Leasing, script.HostLeasing:
			c.add(40, script.Event{Do: script.Run, Slot: slot, Role: r})
		case script.Reporting, script.HostReporting:
			c.add(60, script.Event{Do: script.Run, Slot: slot, Role: r})
		case script.Collecting, script.Hosting, script.Sweeping:
			c.add(10, script.Event{Do: script.Run, Slot: slot, Role: r})
		case script.Triggering:
			for _, res := range object.All {
				if !res.Custom || !c.w.IsHost() {
					c.add(12, script.Event{Do: script.Run, Slot: slot, Role: r, What: res.Name})
				}
			}
		case script.Migrating:
			c.ask()
			for i, res := range object.All {
				for n, weight := range []int{12, 4} {
					if c.live[i][n] {
						c.add(weight+c.temper.put/4, script.Event{Do: script.Run, Slot: slot, Role: r, What: sim.Numbered(res, n)})
					}
				}
			}
		default:
			weight := c.temper.writes
			if c.rewriting != nil {
				weight *= 3 // writes that the rewrite must not undo
			}
			c.add(weight, script.Event{Do: script.Run, Slot: slot, Role: r})
		}
	}
	if p.Paused() {
		return
	}
	for s := range script.Streams {
		if p.Lags(s) {
			c.add(c.temper.lag, script.Event{Do: script.See, Slot: slot, See: s})
		}
	}
}

// ask looks for migrations that are not final.
func (c *chooser) ask() {
	if c.asked {
		return
	}
	c.asked = true
	for i, r := range object.All {
		for n := range c.live[i] {
			c.live[i][n] = c.w.HasMigration(r, n)
		}
	}
}

func (c *chooser) offerFaults(p *sim.Process) {
	f, slot := &c.temper.faults, p.Slot
	c.add(f[script.Kill], script.Event{Do: script.Kill, Slot: slot})
	if !p.Leaving() {
		c.add(f[script.Stop], script.Event{Do: script.Stop, Slot: slot})
	}
	if p.Paused() {
		c.add(4, script.Event{Do: script.Resume, Slot: slot})
	} else {
		c.add(f[script.Pause], script.Event{Do: script.Pause, Slot: slot})
	}
	if p.Cut() {
		c.add(6, script.Event{Do: script.Heal, Slot: slot})
	} else {
		c.add(f[script.Cut], script.Event{Do: script.Cut, Slot: slot})
	}
	streams := script.SeeHostLeases
	if p.IsReplica() {
		streams = script.Streams
		c.offerHostFaults(p)
	}
	if f[script.Jump] > 0 && p.Jumped < 3 {
		jumps := []time.Duration{3 * time.Second, 20 * time.Second, time.Hour, -20 * time.Second, -time.Hour}
		c.add(f[script.Jump], script.Event{Do: script.Jump, Slot: slot, For: jumps[c.IntN(len(jumps))]})
		c.add(f[script.Jump], script.Event{Do: script.Drift, Slot: slot, What: []string{"0.975", "1", "1.025"}[c.IntN(3)]})
	}
	switch leaders := c.w.Leaders(); {
	case p.Silent, p.Stock:
	case p.Leads():
		c.add(f[script.Unlead], script.Event{Do: script.Unlead, Slot: slot})
	case leaders == 0:
		c.add(30, script.Event{Do: script.Lead, Slot: slot})
	default:
		c.add(f[script.Lead], script.Event{Do: script.Lead, Slot: slot})
	}
	if f[script.Relist] > 0 {
		c.add(f[script.Relist], script.Event{Do: script.Relist, Slot: slot, See: script.Stream(c.IntN(int(streams)))})
	}
	if c.temper.admin > 0 && !p.Stock {
		c.add(1, script.Event{Do: script.Admin, What: deleteLease[slot]})
	}
	if f[script.Key] > 0 {
		c.add(f[script.Key], script.Event{Do: script.Key, Slot: slot, What: []string{"a", "b", "-"}[c.IntN(3)]})
	}
}

// offerDismissal offers the deletion of a stock server's Lease: of a server that is gone, which somebody has to do, or
// of one that lives.
func (c *chooser) offerDismissal(slot int) {
	if c.temper.stock == 0 || !c.w.HasStockLease(slot) {
		return
	}
	weight := 3
	if p := c.w.Process(slot); p != nil && !p.Gone() && p.Stock {
		weight = min(c.temper.admin, 1)
	}
	c.add(weight, script.Event{Do: script.Admin, What: "delete stock lease " + script.SlotName(slot)})
}

func (c *chooser) offerWorld() {
	w, f := c.w, &c.temper.faults
	for slot, role := range w.Late() {
		c.add(5, script.Event{Do: script.Late, Slot: slot, Role: role})
	}
	c.add(15, script.Event{Do: script.Tick, For: c.temper.tick})
	c.add(1, script.Event{Do: script.Tick, For: 20 * time.Second})
	c.add(f[script.Pass], script.Event{Do: script.Pass, For: []time.Duration{3 * time.Second, 10 * time.Second, 17 * time.Second, 25 * time.Second}[c.IntN(4)]})
	switch {
	case !w.EtcdWell():
		c.add(20, script.Event{Do: script.Etcd, What: "ok"})
	case f[script.Etcd] > 0:
		c.add(f[script.Etcd], script.Event{Do: script.Etcd, What: []string{"down", "full", "slow"}[c.IntN(3)]})
	}
	if w.Host() != nil || w.IsHost() {
		c.offerHosted()
		return
	}
	switch crd := w.Definition(); {
	case crd == nil:
		c.add(8, script.Event{Do: script.Define, What: []string{"v1", "v2"}[c.IntN(2)]})
	case crd.DeletionTimestamp != nil:
		c.add(20, script.Event{Do: script.Purge})
	default:
		c.add(2*f[script.Define], script.Event{Do: script.Define, What: []string{"v1", "v2"}[c.IntN(2)]})
		c.add(f[script.Undefine], script.Event{Do: script.Undefine})
	}
	if c.temper.admin > 0 {
		deed := deeds[c.IntN(len(deeds))]
		c.add(c.temper.admin, script.Event{Do: script.Admin, What: deed[c.IntN(len(object.All))]})
	}
	if c.temper.admin > 0 {
		c.add(1, script.Event{Do: script.Admin, What: "forge widgets"})
		c.add(1, script.Event{Do: script.Admin, What: "lower widgets"})
	}
	if c.temper.admin > 0 && w.HasFailedMigration() {
		c.add(4, script.Event{Do: script.Admin, What: heal[c.IntN(len(object.All))]})
	}
}

// Actions of an administrator, in words that are put together once.
var (
	deeds = [...][len(object.All)]string{
		ofAll("delete state"), ofAll("delete version"), ofAll("delete migration"), ofAll("migrate"), ofAll("pause"), ofAll("continue"),
	}
	heal        = ofAll("heal")
	deleteLease = func() (words [script.MaxSlots]string) {
		for slot := range words {
			words[slot] = "delete lease " + script.SlotName(slot)
		}
		return words
	}()
)

// ofAll returns the deed with the name of every resource.
func ofAll(deed string) (words [len(object.All)]string) {
	for i, r := range object.All {
		words[i] = deed + " " + r.Name
	}
	return words
}
