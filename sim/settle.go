package sim

import (
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// restBound is within which time everything has to come to rest after faults and changes
// have stopped: failed migrations may have to wait for their back-off of 10 minutes.
const restBound = 30 * time.Minute

// Settle ends all faults, completes what was begun (all servers come to run one release,
// with its gate on, stock servers and their Leases go, as does a definition that was asked
// to) and lets time pass without disturbance until the world is at rest. If it does not come
// to rest, I7 is violated. Late requests arrive when everything is at rest, unless they are to
// stay late.
func (w *World) Settle(stayLate bool) {
	worlds := []*World{w}
	if w.host != nil {
		worlds = append(worlds, w.host)
	}
	for _, each := range worlds {
		each.reconnect()
	}
	late := false
	for _, each := range worlds {
		each.calm()
		late = late || len(each.late) > 0
	}
	for _, each := range worlds {
		each.dismiss()
	}
	w.comeToRest()
	if stayLate || !late {
		return
	}
	for _, each := range worlds {
		for len(each.late) > 0 && w.checker.Violation == nil {
			r := each.late[0]
			each.late = each.late[1:]
			r.to.apply(r)
			w.check()
		}
	}
	for _, each := range worlds {
		each.dismiss()
	}
	w.comeToRest() // a late request may bring objects, too, if its sender's gate was off
}

// comeToRest lets time pass until the world is at rest, which objects that cannot be migrated
// keep it from.
func (w *World) comeToRest() {
	if w.broken() {
		w.until(w.checker.Spared)
		w.heal()
	}
	w.until(func() invariant.Reason {
		if w.host != nil {
			return w.hostedRest()
		}
		return w.checker.Rest(w.release().Stores)
	})
}

// heal has an administrator delete the objects that cannot be migrated.
func (w *World) heal() {
	for _, r := range object.All {
		w.healObjects(r)
	}
	w.observe(nil)
}

// broken says whether there are objects that cannot be migrated.
func (w *World) broken() bool {
	found := false
	for _, r := range object.All {
		w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) { found = found || object.Unmarshal(kv.Value).Broken })
	}
	return found
}

// until lets time pass undisturbed until rest has nothing to say.
func (w *World) until(rest func() invariant.Reason) {
	var why invariant.Reason
	for began, round := w.now, 0; w.now-began < restBound; round++ {
		if w.quiet(); w.checker.Violation != nil {
			return
		}
		if round >= settleRounds || round%2 == 1 {
			if why = rest(); why == nil {
				return
			}
		}
		step := 4 * time.Second
		if round > 2*settleRounds && round%settleRounds == 0 {
			step = time.Minute
		}
		w.tick(step)
	}
	w.checker.Violate("I7", "%s after the faults ended: %s", restBound, why())
}

// settleRounds are enough to bury all dead servers.
const settleRounds = 7

// reconnect has etcd answer, and everybody reach it.
func (w *World) reconnect() {
	w.etcd = etcdOK
	for _, p := range w.slots {
		if p == nil {
			continue
		}
		p.paused, p.cut = false, false
		if p.replica != nil {
			p.replica.cut = false
		}
	}
}

// calm ends all other faults. All servers come to encrypt with the key of the first.
func (w *World) calm() {
	target := w.release()
	key := w.seals[0]
	if p := w.leader(); p != nil {
		key = p.seal
	}
	for slot := range w.seals {
		w.seals[slot] = key
	}
	alive, leading := false, false
	for slot, p := range w.slots {
		if p == nil {
			continue
		}
		// Of the processes that believe that they lead, one continues to believe it.
		p.leads = p.leads && !leading && !p.gone && !p.leaving && p.Release == target && !p.Silent && !p.Stock
		leading = leading || p.leads
		// A process that waits for a moment that its clock has been set back from need not wait again.
		p.clock.set(p.clock.Now(), 1)
		p.clock.set(p.clock.peak, 1)
		for _, t := range p.tasks {
			if t != nil && !t.ended {
				w.finish(t)
				w.check()
			}
		}
		switch {
		case p.gone:
			continue
		case p.leaving || p.Release != target || p.Silent || p.Stock:
			p.end()
			w.start(slot, target, false, false)
		case p.seal != key:
			p.load(key)
			p.idle = false
		}
		alive = true
	}
	if !alive {
		w.start(0, target, false, false)
	}
	if !leading {
		w.leader().leads = true
	}
	for w.purge() {
		w.check()
	}
	for _, r := range object.All {
		w.pauseMigrations(r, false)
	}
	w.observe(nil)
}

// leader returns the first server.
func (w *World) leader() *Process {
	for _, p := range w.slots {
		if p != nil && !p.gone {
			return p
		}
	}
	return nil
}

// release is the release that all servers come to run when the world settles: that of the first.
func (w *World) release() object.Release {
	if p := w.leader(); p != nil {
		return p.Release
	}
	for _, p := range w.slots {
		if p != nil {
			return p.Release
		}
	}
	return object.Releases[0]
}

// quiet is one round in which every server does all that is due, one after the other and
// undisturbed.
func (w *World) quiet() {
	if w.host != nil {
		w.host.quiet()
	}
	for _, p := range w.slots {
		if p == nil || p.gone {
			continue
		}
		w.deliver(p)
		for _, r := range []script.Role{script.Leasing, script.Reporting, script.Collecting, script.Hosting, script.HostLeasing, script.HostReporting, script.Sweeping} {
			w.whole(p, r, "")
		}
		if p.leads {
			for _, r := range object.All {
				w.whole(p, script.Triggering, r.Name)
			}
		}
		for _, r := range object.All {
			for n := 0; ; n++ {
				if _, live := w.live(r, n); !live {
					break
				}
				w.whole(p, script.Migrating, Numbered(r, n))
			}
		}
		w.deliver(p)
		w.whole(p, script.Reporting, "")
	}
}

// Numbered names the n-th migration of a resource, from 0, as events do.
func Numbered(r *object.Resource, n int) string {
	if n == 0 {
		return r.Name
	}
	return r.Name + " " + strconv.Itoa(n)
}

func (w *World) deliver(p *Process) {
	for s := range script.Streams {
		for w.checker.Violation == nil && w.see(p, s) {
		}
	}
}

// whole runs a task from its beginning to its end, if it is due.
func (w *World) whole(p *Process, r script.Role, what string) {
	if w.checker.Violation == nil && p.begin(r, what) && p.tasks[r] != nil {
		w.finish(p.tasks[r])
		w.check()
	}
}
