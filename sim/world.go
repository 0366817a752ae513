// Package sim attacks the protocol by machine. A World is a few API servers on one etcd:
// it runs the very code of member, fence, rewrite and the controllers, single-threaded,
// over a simulated etcd and API, with lagging watches, lost and late messages, pauses,
// crashes, clocks that differ, upgrades, rollbacks and administrators. After every step it
// checks the invariants of DESIGN 3.7 against what is stored.
//
// Everything that happens is a script.Event. A seed chooses a script of them; a script replays.
package sim

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/sim/coroutine"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

type etcdState uint8

const (
	etcdOK   etcdState = iota
	etcdDown           // answers nothing
	etcdFull           // takes no puts
	etcdSlow           // its disk takes slowTime for each write
)

// slowTime is less than the delay that makes a server's renewals miss its Lease's end.
const slowTime = 1200 * time.Millisecond

// writable says whether etcd takes puts.
func (s etcdState) writable() bool { return s == etcdOK || s == etcdSlow }

// World is one simulated cluster. It is used by one goroutine.
type World struct {
	config script.Config
	store  *etcd.Store
	api    *registry.Storage
	now    time.Duration
	etcd   etcdState
	slots  [script.MaxSlots]*Process
	// seals are the seals that the processes of each slot encrypt with.
	seals [script.MaxSlots]agree.Seal
	runs  [script.MaxSlots]int
	late  []*request // whose senders do not wait any more
	// host is the cluster to which the servers of this world report, as replicas of an aggregated API server. guest is
	// the world whose host this one is; see replica.
	host, guest *World
	asked       int // how often the replicas were asked for something by the host

	current    *Task
	coroutines coroutine.Pool
	written    int // clients' writes
	logged     int // how much of the store's log has been looked at

	checker  *invariant.Checker
	rewrites Rewrites
	trace    io.Writer
	steps    int
}

// NewWorld returns a world without servers. If trace is not nil, the events are written to it.
func NewWorld(config script.Config, trace io.Writer) *World {
	w := &World{config: config, store: etcd.New(), trace: trace}
	w.api = registry.New(w.store, func() bool { return w.etcd == etcdFull })
	w.checker = invariant.New(w.store, w.store, w.api, func(v invariant.Violation) {
		if w.trace != nil {
			w.tracef("VIOLATION of %s", v)
		}
	})
	if config.Host > 0 {
		w.host = newHost(w)
	}
	return w
}

func (w *World) tracef(format string, args ...any) { fmt.Fprintf(w.trace, format+"\n", args...) }

// Do makes one event happen. It returns false, and does nothing, if the event is not
// possible now.
func (w *World) Do(e script.Event) bool {
	if w.checker.Violation != nil {
		return false
	}
	if w.trace != nil {
		w.tracef("%s", e)
	}
	done := w.do(e)
	if !done {
		if w.trace != nil {
			w.tracef("   not possible now")
		}
		return false
	}
	w.steps++
	w.check()
	return true
}

// check looks at what is stored.
func (w *World) check() {
	switch {
	case w.host != nil:
		w.host.checker.Check()
	case w.guest != nil:
		w.guest.check()
	default:
		w.checker.Check()
	}
}

func (w *World) do(e script.Event) bool {
	switch {
	case e.Host:
		e.Host = false
		return w.host != nil && e.Do != script.Pass && e.Do != script.Settle && w.host.do(e)
	case e.Do.OnTask():
		return w.doTask(e)
	case e.Do == script.Start:
		return w.doStart(e)
	case e.Do.OnSlot():
		p := w.slots[e.Slot]
		return p != nil && !p.gone && w.doProcess(p, e)
	}
	switch e.Do {
	case script.Etcd:
		next, ok := map[string]etcdState{"ok": etcdOK, "down": etcdDown, "full": etcdFull, "slow": etcdSlow}[e.What]
		if !ok || next == w.etcd {
			return false
		}
		if w.etcd.writable() && !next.writable() {
			w.checker.Outages++
		}
		w.etcd = next
		return true
	case script.Tick:
		return w.tick(e.For)
	case script.Pass:
		return w.pass(e.For)
	case script.Round:
		w.quiet()
		return w.tick(time.Second)
	case script.Define:
		return w.define(e.What)
	case script.Undefine:
		return w.undefine()
	case script.Purge:
		return w.purge()
	case script.Admin:
		return w.admin(e.What)
	default: // Settle
		w.Settle(e.What == stayLate)
		return true
	}
}

// stayLate, after settle, keeps late requests late.
const stayLate = "but late"

func (w *World) tick(d time.Duration) bool {
	if d <= 0 {
		return false
	}
	if w.guest != nil {
		return w.guest.tick(d)
	}
	w.pasts(d)
	if w.host != nil {
		w.host.pasts(d)
	}
	return true
}

// pasts lets time go by in this world alone.
func (w *World) pasts(d time.Duration) {
	w.now += d
	w.checker.Now = w.now
	if w.etcd.writable() {
		w.checker.Available += d
	}
}

// pass lets time go by in which every server that can renews its Lease and observes the
// others'.
func (w *World) pass(d time.Duration) bool {
	if d <= 0 || d > time.Minute {
		return false
	}
	for end := w.now + d; w.now < end && w.checker.Violation == nil; {
		w.tick(min(invariant.CollectInterval, end-w.now))
		w.renewals()
		if w.host != nil {
			w.host.renewals()
		}
	}
	return true
}

// renewals has every server that can renew and observe Leases.
func (w *World) renewals() {
	for _, p := range w.slots {
		if p == nil || p.gone || p.leaving || p.cut || w.etcd == etcdDown {
			continue
		}
		w.whole(p, script.Leasing, "")
		w.whole(p, script.Collecting, "")
		w.whole(p, script.HostLeasing, "")
	}
}

func (w *World) doStart(e script.Event) bool {
	name, silent := strings.CutSuffix(e.What, script.GateOff)
	name, stock := strings.CutSuffix(name, script.WithoutConcord)
	i := slices.IndexFunc(object.Releases, func(r object.Release) bool { return r.Name == name })
	if i < 0 || e.Slot >= w.config.Slots || w.slots[e.Slot] != nil && !w.slots[e.Slot].gone {
		return false
	}
	w.start(e.Slot, object.Releases[i], silent, stock)
	return true
}

func (w *World) doProcess(p *Process, e script.Event) bool {
	flip := func(flag *bool, to bool) bool {
		changed := *flag != to
		*flag = to
		return changed
	}
	switch e.Do {
	case script.Stop:
		// The controllers end at once, whatever they were doing.
		for _, r := range []script.Role{script.Collecting, script.Triggering, script.Migrating, script.Hosting, script.Sweeping} {
			p.abandon(p.tasks[r])
		}
		return flip(&p.leaving, true)
	case script.Kill:
		p.end()
		return true
	case script.Pause:
		return flip(&p.paused, true)
	case script.Resume:
		return flip(&p.paused, false)
	case script.Cut, script.Heal:
		cut := &p.cut
		if e.What == script.CutFromHost {
			if p.replica == nil {
				return false
			}
			cut = &p.replica.cut
		}
		return flip(cut, e.Do == script.Cut)
	case script.Jump:
		if e.For > 0 {
			p.Jumped++
		}
		p.clock.set(p.clock.Now().Add(e.For), p.clock.rate)
		return true
	case script.Drift:
		rate, err := strconv.ParseFloat(e.What, 64)
		if err != nil || rate < 1-invariant.MaxDrift || rate > 1+invariant.MaxDrift {
			return false
		}
		p.clock.set(p.clock.Now(), rate)
		return true
	case script.Lead:
		return !p.Silent && !p.Stock && flip(&p.leads, true)
	case script.Unlead:
		p.abandon(p.tasks[script.Triggering])
		p.abandon(p.tasks[script.Sweeping])
		return flip(&p.leads, false)
	case script.See:
		return w.see(p, e.See)
	case script.Key:
		seal, ok := sealNamed(e.What)
		if !ok || p.paused || seal == p.seal {
			return false
		}
		p.load(seal)
		p.idle = false
		return true
	default: // Relist
		if p.paused || p.source(e.See) == nil {
			return false
		}
		w.relist(p, e.See)
		return true
	}
}

func (w *World) doTask(e script.Event) bool {
	if e.Do == script.Late {
		return w.doLate(e)
	}
	p := w.slots[e.Slot]
	if p == nil || p.gone {
		return false
	}
	t := p.tasks[e.Role]
	switch {
	case e.Do == script.Run:
		return p.begin(e.Role, e.What)
	case t == nil:
		return false
	case e.Do == script.Finish:
		return w.finish(t)
	case t.req == nil:
		if e.Do != script.Do || p.paused || !t.due() {
			return false
		}
		w.resume(t)
		return true
	}
	if !t.req.applied && (e.Do == script.Do || e.Do == script.Apply) && !t.req.reaches() || p.paused && e.Do != script.Apply {
		return false
	}
	switch e.Do {
	case script.Apply:
		if t.req.applied {
			return false
		}
		t.req.to.apply(t.req)
		return true
	case script.Lose:
		if !t.req.applied && !t.req.reads() {
			w.late = append(w.late, t.req)
		}
		t.err = lostAnswer(t.req, e.What)
		w.unanswered(t.req)
	case script.Fail:
		if t.req.applied {
			return false
		}
		t.err = errNoAnswer
		w.unanswered(t.req)
	case script.Absent:
		if t.req.applied || t.req.key != "" || t.req.asks {
			return false
		}
		t.err = unserved(t.req)
	default: // Do
		if !t.req.applied {
			t.req.to.apply(t.req)
		}
	}
	w.resume(t)
	return true
}

// unanswered counts a request whose sender does not hear of it.
func (w *World) unanswered(r *request) {
	if !r.rewritesObject() {
		return
	}
	w.rewrites.Unanswered++
	if r.applied && r.err == nil && !r.refused {
		w.rewrites.Unheard++
	}
}

// finish runs a task to its end, or as far as its requests are answered.
func (w *World) finish(t *Task) bool {
	p := t.p
	if p.paused || p.cut || w.etcd == etcdDown || t.req != nil && !t.req.reaches() {
		return false
	}
	for calls := 0; !t.ended && calls < 1000 && w.checker.Violation == nil; calls++ {
		if t.req == nil && !t.due() {
			if t.until == 0 {
				if w.finishPuts(t) {
					continue
				}
				return true // it waits for something else
			}
			w.tick(t.until - w.now)
		}
		if t.req != nil && !t.req.applied {
			if !t.req.reaches() {
				return true // a replica does not reach its host
			}
			t.req.to.apply(t.req)
			w.check()
		}
		w.resume(t)
	}
	return true
}

// finishPuts runs the transactions that a rewrite waits for to their ends. It returns false if
// none of them has ended.
func (w *World) finishPuts(t *Task) (some bool) {
	if t.role != script.Migrating {
		return false
	}
	for _, put := range t.p.tasks[script.Putting1:] {
		if put != nil {
			w.finish(put)
			some = some || put.ended
		}
	}
	return w.finishPatches() || some
}

// doLate has the oldest late request of a server's task arrive.
func (w *World) doLate(e script.Event) bool {
	for i, r := range w.late {
		if r.sender.Slot == e.Slot && r.Role == e.Role && r.to.etcd != etcdDown && (r.sender.gone || !r.cut()) {
			w.late = slices.Delete(w.late, i, i+1)
			r.to.apply(r)
			return true
		}
	}
	return false
}

// apply is the moment at which a request happens.
func (w *World) apply(r *request) {
	r.applied = true
	if w.etcd == etcdSlow && !r.reads() {
		w.tick(slowTime)
	}
	r.err = r.apply(w, r)
	switch {
	case !r.rewritesObject():
	case r.err != nil:
		w.rewrites.Failed++
	case r.refused:
		w.rewrites.Refused++
	default:
		w.rewrites.Written++
	}
	if w.trace != nil {
		w.tracef("   %s/%s %s: %s", r.By, r.Role, r, outcome(r.err))
	}
	w.observe(r)
}

// observe looks at the changes that were written since it was last called, by r if it is not nil.
func (w *World) observe(r *request) {
	var by *invariant.Write
	if r != nil {
		by = &r.Write
	}
	log := w.store.Log()
	for ; w.logged < len(log); w.logged++ {
		e := log[w.logged]
		w.api.Note(e)
		w.checker.Judge(by, e)
		if w.host != nil && by != nil {
			w.host.checker.JudgeHosted(by, e)
		}
	}
}

// migration returns the name of a migration that is not final: "things" means the first
// of the resource, "things 1" the second.
func (w *World) migration(what string) (string, bool) {
	name, number, _ := strings.Cut(what, " ")
	r, ok := object.Named(name)
	if !ok {
		return "", false
	}
	n := 0
	if number != "" {
		n, _ = strconv.Atoi(number)
	}
	return w.live(r, n)
}

// live returns the name of the n-th migration of a resource, from 0, that is not final.
func (w *World) live(r *object.Resource, n int) (string, bool) {
	for _, stored := range w.api.Shelf(registry.Migrations) {
		m := stored.Object.(*migrationv1alpha1.StorageVersionMigration)
		if migrationv1alpha1.Resource(m) == r.GroupResource && !migrationv1alpha1.Final(m) {
			if n == 0 {
				return m.Name, true
			}
			n--
		}
	}
	return "", false
}
