// Package sim attacks the protocol by machine. A World is a few API servers on one etcd:
// it runs the very code of member, fence, rewrite and the controllers, single-threaded,
// over a simulated etcd and API, with lagging watches, lost and late messages, pauses,
// crashes, clocks that differ, upgrades, rollbacks and administrators. After every step it
// checks the invariants of DESIGN 3.7 against what is stored.
//
// Everything that happens is an Event. A seed chooses a script of them; a script replays.
package sim

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"go.etcd.io/etcd/api/v3/mvccpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
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

	current *task
	idle    []*worker
	written int // clients' writes
	logged  int // how much of the store's log has been looked at

	checker  *invariant.Checker
	rewrites Rewrites
	trace    io.Writer
	steps    int
}

// NewWorld returns a world without servers. trace, if not nil, is told what happens.
func NewWorld(config script.Config, trace io.Writer) *World {
	w := &World{config: config, store: etcd.New(), trace: trace}
	w.api = registry.New(w.store, func() bool { return w.etcd == etcdFull })
	w.checker = invariant.New(w.store, w.api, func(v invariant.Violation) {
		if w.trace != nil {
			w.tracef("VIOLATION of %s", v)
		}
	})
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
	w.checker.Check()
	return true
}

func (w *World) do(e script.Event) bool {
	switch {
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
	w.now += d
	if w.etcd.writable() {
		w.checker.Available += d
	}
	return true
}

// pass lets time go by in which every server that can renews its Lease and observes the
// others'.
func (w *World) pass(d time.Duration) bool {
	if d <= 0 || d > time.Minute {
		return false
	}
	for end := w.now + d; w.now < end && w.checker.Violation == nil; {
		w.tick(min(invariant.CollectInterval, end-w.now))
		for _, p := range w.slots {
			if p == nil || p.gone || p.leaving || p.cut || w.etcd == etcdDown {
				continue
			}
			w.whole(p, script.Leasing, "")
			w.whole(p, script.Collecting, "")
		}
	}
	return true
}

// gateOff, after a release, starts a server whose gate StorageVersionAPI is off, and
// withoutConcord a stock server.
const (
	gateOff        = " off"
	withoutConcord = " stock"
)

func (w *World) doStart(e script.Event) bool {
	name, silent := strings.CutSuffix(e.What, gateOff)
	name, stock := strings.CutSuffix(name, withoutConcord)
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
		for _, r := range []script.Role{script.Collecting, script.Triggering, script.Migrating} {
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
	case script.Cut:
		return flip(&p.cut, true)
	case script.Heal:
		return flip(&p.cut, false)
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
		if p.paused {
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
	reached := !p.cut && w.etcd != etcdDown
	if !t.req.applied && (e.Do == script.Do || e.Do == script.Apply) && !reached || p.paused && e.Do != script.Apply {
		return false
	}
	switch e.Do {
	case script.Apply:
		if t.req.applied {
			return false
		}
		w.apply(t.req)
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
		if t.req.applied || t.req.key != "" {
			return false
		}
		t.err = unserved(t.req)
	default: // Do
		if !t.req.applied {
			w.apply(t.req)
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

// finish runs a task to its end.
func (w *World) finish(t *task) bool {
	p := t.p
	if p.paused || p.cut || w.etcd == etcdDown {
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
			w.apply(t.req)
			w.checker.Check()
		}
		w.resume(t)
	}
	return true
}

// finishPuts runs the transactions that a rewrite waits for to their ends. It returns false if
// none of them has ended.
func (w *World) finishPuts(t *task) (some bool) {
	if t.role != script.Migrating {
		return false
	}
	for _, put := range t.p.tasks[script.Putting1:] {
		if put != nil {
			w.finish(put)
			some = some || put.ended
		}
	}
	return some
}

// doLate has the oldest late request of a server's task arrive.
func (w *World) doLate(e script.Event) bool {
	if w.etcd == etcdDown {
		return false
	}
	for i, r := range w.late {
		if r.sender.Slot == e.Slot && r.Role == e.Role && (r.sender.gone || !r.sender.cut) {
			w.late = slices.Delete(w.late, i, i+1)
			w.apply(r)
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
	}
}

// see delivers the next event of a watch.
func (w *World) see(p *Process, s script.Stream) bool {
	if p.paused || p.cut {
		return false
	}
	if p.cursors[s] < 0 {
		w.relist(p, s)
		return true
	}
	events := w.api.Changes[streamKind[s]]
	if p.cursors[s] >= len(events) {
		return false
	}
	e := events[p.cursors[s]]
	p.cursors[s]++
	p.told(s, e)
	return true
}

func (w *World) relist(p *Process, s script.Stream) {
	p.relisted(s)
	p.cursors[s] = len(w.api.Changes[streamKind[s]])
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

// define creates the definition of the custom resource, or has it store another version.
func (w *World) define(version string) bool {
	if !w.etcd.writable() || !slices.Contains([]string{"v1", "v2"}, version) {
		return false
	}
	crd := w.api.LookDefinition()
	if crd == nil {
		w.must(w.api.Create(definition(version), epoch.Add(w.now)))
		w.observe(nil)
		return true
	}
	if registry.StoredBy(crd) == version || crd.DeletionTimestamp != nil {
		return false
	}
	next := crd.DeepCopy()
	for i := range next.Spec.Versions {
		next.Spec.Versions[i].Storage = next.Spec.Versions[i].Name == version
	}
	w.must(w.api.Update(next, false))
	w.observe(nil)
	return true
}

func definition(version string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = object.Widgets.Full
	crd.Spec.Group, crd.Spec.Names.Plural, crd.Spec.Names.Kind = object.Widgets.GroupResource.Group, object.Widgets.GroupResource.Resource, object.Widgets.Kind
	for _, name := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: name == version})
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	return crd
}

// undefine is a request to delete the definition: its finalizer holds it.
func (w *World) undefine() bool {
	crd := w.api.LookDefinition()
	if !w.etcd.writable() || crd == nil || crd.DeletionTimestamp != nil {
		return false
	}
	next := crd.DeepCopy()
	at := metav1.NewTime(epoch.Add(w.now).Truncate(time.Second))
	next.DeletionTimestamp = &at
	next.Status.Conditions = append(next.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue,
	})
	w.must(w.api.Put(registry.Definitions, next))
	w.observe(nil)
	return true
}

// purge is one round of the finalizer: it deletes the objects that exist, and if there were none
// the definition goes.
func (w *World) purge() bool {
	crd := w.api.LookDefinition()
	if !w.etcd.writable() || crd == nil || crd.DeletionTimestamp == nil {
		return false
	}
	var keys []string
	w.store.Scan(object.Widgets.Prefix, func(kv *mvccpb.KeyValue) { keys = append(keys, string(kv.Key)) })
	for _, key := range keys {
		w.remove(key)
	}
	if len(keys) == 0 {
		w.remove(registry.KeyOf(registry.Definitions, crd.Name))
	}
	w.observe(nil)
	return true
}

// admin is a deed of an administrator: "delete state things", "delete migration things",
// "delete lease s1", "delete stock lease s1" (of a stock server that runs or ran there),
// "delete version things", "migrate things", "pause things" and
// "continue things" (their migrations), "heal things" (deletes objects that no codec can
// decode), "forge widgets" (its StorageState then says consistently that only the encoding that is
// agreed on is stored), "lower widgets" (its storedVersions then name only the version that the
// definition stores).
func (w *World) admin(what string) bool {
	words := strings.Fields(what)
	if !w.etcd.writable() || len(words) < 2 {
		return false
	}
	last := words[len(words)-1]
	r, isResource := object.Named(last)
	done := false
	switch deed := strings.Join(words[:len(words)-1], " "); {
	case deed == "delete lease":
		if slot := script.SlotNamed(last); slot >= 0 && w.slots[slot] != nil {
			done = w.remove(registry.KeyOf(registry.Leases, string(w.slots[slot].id())))
		}
	case deed == "delete stock lease":
		if slot := script.SlotNamed(last); slot >= 0 {
			done = w.remove(registry.KeyOf(registry.Leases, string(invariant.StockID(slot))))
		}
	case !isResource:
	case deed == "delete state":
		done = w.remove(registry.KeyOf(registry.States, r.State))
	case deed == "delete version":
		done = w.remove(registry.KeyOf(registry.StorageVersions, r.Version))
	case deed == "delete migration":
		if name, ok := w.migration(last); ok {
			done = w.remove(registry.KeyOf(registry.Migrations, name))
		}
	case deed == "migrate":
		m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: r.GroupResource.Group, Version: "v1", Resource: r.GroupResource.Resource},
		}}
		m.Name = fmt.Sprintf("user-%s-%d", last, w.api.LastUID)
		done = w.api.Create(m, epoch.Add(w.now)) == nil
	case deed == "pause", deed == "continue":
		done = w.pauseMigrations(r, deed == "pause")
	case deed == "heal":
		done = w.healObjects(r)
	case deed == "forge":
		done = w.forge(r)
	case deed == "lower":
		done = w.lower(r)
	}
	w.observe(nil)
	return done
}

// pauseMigrations has the migrations of a resource that are not final paused, or go on.
func (w *World) pauseMigrations(r *object.Resource, paused bool) bool {
	var changed []*migrationv1alpha1.StorageVersionMigration
	for n := 0; ; n++ {
		name, ok := w.live(r, n)
		if !ok {
			break
		}
		if m := w.api.Look(registry.Migrations, name).(*migrationv1alpha1.StorageVersionMigration); m.Spec.Paused != paused {
			changed = append(changed, m.DeepCopy())
		}
	}
	for _, m := range changed {
		m.Spec.Paused = paused
		w.must(w.api.Put(registry.Migrations, m))
	}
	return len(changed) > 0
}

// forge edits a StorageState consistently. That is found out only where storedVersions would
// shrink by it, so only the StorageState of a resource that has them can be forged.
func (w *World) forge(r *object.Resource) bool {
	state, sv, crd := w.api.LookState(r), w.api.LookStorageVersion(r), w.api.LookDefinition()
	if !r.Custom || w.config.Census == 0 || state == nil || sv == nil || crd == nil || len(crd.Status.StoredVersions) < 2 {
		return false
	}
	common, agreed := storageversion.Agreement(sv)
	history, err := storageversion.History(sv)
	w.must(err)
	if !agreed || !w.checker.Forge() {
		return false
	}
	next := state.DeepCopy()
	view := migrationv1alpha1.ViewState(next)
	view.Of, view.Current, view.Stored = evolve.Ref{UID: string(sv.UID), Epoch: history.Epoch}, common, []agree.Encoding{common}
	migrationv1alpha1.SetState(next, view, r.Kind)
	w.must(w.api.Put(registry.States, next))
	return true
}

// lower takes out of storedVersions all but the version that the definition stores.
func (w *World) lower(r *object.Resource) bool {
	crd := w.api.LookDefinition()
	if !r.Custom || crd == nil || len(crd.Status.StoredVersions) < 2 || !w.checker.Lower() {
		return false
	}
	next := crd.DeepCopy()
	next.Status.StoredVersions = []string{registry.StoredBy(crd)}
	w.must(w.api.Put(registry.Definitions, next))
	return true
}

func (w *World) healObjects(r *object.Resource) bool {
	var keys []string
	w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
		if object.Unmarshal(kv.Value).Broken {
			keys = append(keys, string(kv.Key))
		}
	})
	for _, key := range keys {
		w.remove(key)
	}
	return len(keys) > 0
}

// remove deletes a key. It returns false if there is none.
func (w *World) remove(key string) bool {
	if w.store.Lookup(key) == nil {
		return false
	}
	_, err := w.store.Delete(context.Background(), key)
	w.must(err)
	return true
}
