package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// Violation is an invariant of DESIGN 3.7 that does not hold.
type Violation struct {
	// Invariant is "I1" to "I10", or "panic" if production code panicked.
	Invariant string
	// What describes the violation.
	What string
}

// String prints "I4: ...".
func (v Violation) String() string { return v.Invariant + ": " + v.What }

func (w *World) violate(invariant, format string, args ...any) {
	if w.violation == nil {
		w.violation = &Violation{Invariant: invariant, What: fmt.Sprintf(format, args...)}
		if w.trace != nil {
			w.tracef("VIOLATION of %s", w.violation)
		}
	}
}

// ledger is the record of the past that the invariants need.
type ledger struct {
	// available is for how long etcd has answered everything.
	available time.Duration
	// outages is how often it has stopped to.
	outages int
	// renewed is when, in available time, the Lease of an ID was last written.
	renewed map[agree.ServerID]renewal
	// owner is whose registration an ID is.
	owner map[agree.ServerID]*Process
	// madeFor is the definition that a key of a custom resource belongs to: the one for
	// which the StorageVersion stood that permitted it.
	madeFor map[string]types.UID
	// erased are the registrations of servers whose gate is off for which the
	// StorageVersions were deleted.
	erased map[agree.ServerID]bool
	// stray are the keys that such a server wrote although it had no Lease any more:
	// nothing is promised of them until all StorageVersions are deleted once more (DESIGN 3.8).
	stray map[string]bool
	// unnoticed are the keys that a stock server wrote while nobody reported Unknown for it,
	// and which one: nothing is promised of them until somebody does.
	unnoticed map[string]agree.ServerID
	// unreported are the keys that a server wrote which reports nothing, as its gate is off or it
	// is a stock one: no census foresees what it writes.
	unreported map[string]bool
	// ended are the StorageVersions that a server has written although it knew that their
	// definition had come to its end, by uid: they permit nothing for its successor any more.
	ended map[types.UID]bool
	// committed are the clients' writes that were committed, by the data that names them.
	committed map[string]bool
	// forged says that the StorageState of widgets was edited, and lowered is the revision
	// since which its storedVersions were lowered, while that was not put right.
	forged  bool
	lowered int64
	// loweredOf is the StorageState that knew what storedVersions named before that; "" if none.
	loweredOf types.UID
	// verdicts are the last ones.
	verdicts map[*object.Resource]*judged
	// counted are the last censuses.
	counted map[*object.Resource]*counted
	// encodings and readings are the contents of stored values, which never change.
	encodings map[*mvccpb.KeyValue]agree.Encoding
	readings  map[*v1alpha1.StorageVersion]*reading
}

// renewal is when a Lease was written.
type renewal struct {
	available time.Duration
	outages   int
}

func (l *ledger) init() {
	l.renewed = map[agree.ServerID]renewal{}
	l.owner = map[agree.ServerID]*Process{}
	l.madeFor = map[string]types.UID{}
	l.erased = map[agree.ServerID]bool{}
	l.stray = map[string]bool{}
	l.unnoticed = map[string]agree.ServerID{}
	l.unreported = map[string]bool{}
	l.committed = map[string]bool{}
	l.ended = map[types.UID]bool{}
	l.verdicts = map[*object.Resource]*judged{}
	l.counted = map[*object.Resource]*counted{}
	l.encodings = map[*mvccpb.KeyValue]agree.Encoding{}
	l.readings = map[*v1alpha1.StorageVersion]*reading{}
}

// erasure notes that all StorageVersions were deleted for a registration.
func (l *ledger) erasure(id agree.ServerID) {
	l.erased[id] = true
	clear(l.stray)
	clear(l.unnoticed)
}

// judge looks at one change of one key, made by r, or by an administrator if r is nil.
func (w *World) judge(r *request, e etcd.Event) {
	for _, res := range object.All {
		if strings.HasPrefix(e.Key, res.Prefix) {
			w.judgeObject(r, res, e)
			return
		}
	}
	switch {
	case strings.HasPrefix(e.Key, registry.Leases.Prefix()):
		w.judgeLease(r, e)
	case strings.HasPrefix(e.Key, registry.StorageVersions.Prefix()) && r != nil:
		w.judgeReports(r, e)
	}
}

// judgeObject checks a put of a user's object.
func (w *World) judgeObject(r *request, res *object.Resource, e etcd.Event) {
	delete(w.ledger.madeFor, e.Key)
	delete(w.ledger.stray, e.Key)
	delete(w.ledger.unnoticed, e.Key)
	if e.KV == nil {
		return
	}
	if r.role == script.Writing1 || r.role == script.Writing2 {
		w.ledger.committed[object.Unmarshal(e.KV.Value).Data] = true
	}
	encoding := w.encodingOf(e.KV)
	sv := w.api.LookStorageVersion(res)
	w.ledger.unreported[e.Key] = r.by.stock || r.by.silent
	switch {
	case r.by.stock:
		w.judgeStock(r, res, e.Key)
		return
	case r.by.silent:
		w.judgeUnfenced(r, e.Key, encoding, sv)
		return
	}

	// I2 A put commits only while the StorageVersion holds the writer's report for the
	// encoding written. The writer is a registration: a process can have had several.
	if sv == nil || !slices.ContainsFunc(w.read(sv).reports, func(report agree.Report) bool {
		return report.Server == r.id && report.Encoding == encoding
	}) {
		w.violate("I2", "%s wrote %s in %s without a report for it; %s", r.by, e.Key, encoding, described{sv})
		return
	}

	// I3 While commonEncodingVersion = v, every put that commits is in v.
	if says := w.read(sv); says.agreed && says.common != encoding {
		w.violate("I3", "%s wrote %s in %s; %s", r.by, e.Key, encoding, described{sv})
	}

	// I5 Migration never changes an object's content, and never undoes a concurrent write.
	if r.role.Rewrites() {
		w.judgeRewrite(r, e, encoding)
	}
	if res.Custom {
		w.ledger.madeFor[e.Key] = madeFor(sv)
		if crd := w.api.LookDefinition(); crd != nil && w.ledger.ended[sv.UID] {
			w.ledger.madeFor[e.Key] = crd.UID
		}
	}
}

// answered checks the answer to a client's write:
// I9 An acknowledged write was written, and a write that was committed is not answered as one
// that found another object, or none.
func (w *World) answered(what, data string, err error) {
	switch committed := w.ledger.committed[data]; {
	case err == nil && !committed:
		w.violate("I9", "%s is acknowledged and was not written", what)
	case committed && (errors.Is(err, object.ErrExists) || errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrBusy)):
		w.violate("I9", "%s was written and is answered: %v", what, err)
	}
}

// judgeUnfenced checks a put of a server whose gate is off. It has no report (I2), and no
// storedVersions are kept for it (I8). As long as its Lease exists nobody agrees.
func (w *World) judgeUnfenced(r *request, key string, encoding agree.Encoding, sv *v1alpha1.StorageVersion) {
	if declared, once := w.declared(r.by); !declared && once {
		w.ledger.stray[key] = true
		return
	}
	// I3 While commonEncodingVersion = v, every put that commits is in v.
	if sv == nil {
		return
	}
	if says := w.read(sv); says.agreed && says.common != encoding {
		w.violate("I3", "%s, whose gate is off, wrote %s in %s; %s", r.by, key, encoding, described{sv})
	}
}

// declared says whether everybody can know that a process's gate is off: a Lease of its
// exists for which the StorageVersions were deleted. once says whether that was so before.
func (w *World) declared(p *Process) (declared, once bool) {
	for id := range w.ledger.erased {
		if w.ledger.owner[id] == p {
			once = true
			declared = declared || w.api.Look(registry.Leases, string(id)) != nil
		}
	}
	return declared, once
}

// madeFor is the uid of the definition for which a StorageVersion was made.
func madeFor(sv *v1alpha1.StorageVersion) types.UID {
	return types.UID(sv.Annotations[storageversion.CRDAnnotation])
}

// older says whether a server is older than one that took part before its task began.
func (w *World) older(r *request) bool {
	found := false
	w.store.Scan(registry.Leases.Prefix(), func(kv *mvccpb.KeyValue) {
		owner := w.ledger.owner[agree.ServerID(strings.TrimPrefix(string(kv.Key), registry.Leases.Prefix()))]
		found = found || owner != nil && owner.release.Emulates > r.by.release.Emulates && kv.CreateRevision <= r.began
	})
	return found
}

// judgeRewrite compares the value that a migrator wrote with the one before it. The content of
// a value that already is in the encoding is not touched at all; a field that the
// release does not know may be lost with another encoding only, and not while a newer
// server takes part.
func (w *World) judgeRewrite(r *request, e etcd.Event, encoding agree.Encoding) {
	if e.Prev == nil {
		w.violate("I5", "a rewrite by %s brought back %s, which was deleted", r.by, e.Key)
		return
	}
	before, after := object.Unmarshal(e.Prev.Value), object.Unmarshal(e.KV.Value)
	switch {
	case before.Data != after.Data:
		w.violate("I5", "a rewrite by %s changed %s from write %s to write %s", r.by, e.Key, before.Data, after.Data)
	case before.Broken:
		w.violate("I5", "a rewrite by %s wrote %s, which it cannot decode", r.by, e.Key)
	case before.Future != after.Future && (w.encodingOf(e.Prev) == encoding || r.by.release.Knows || strings.HasPrefix(e.Key, object.Widgets.Prefix) || w.older(r)):
		w.violate("I5", "a rewrite by %s lost a field of %s", r.by, e.Key)
	}
}

// judgeLease keeps account of renewals and checks which process deletes a Lease.
func (w *World) judgeLease(r *request, e etcd.Event) {
	if e.KV != nil {
		lease := w.api.View(e.KV).(*coordinationv1.Lease)
		id := agree.ServerID(lease.Name)
		w.ledger.renewed[id] = renewal{w.ledger.available, w.ledger.outages}
		if r != nil && (w.ledger.owner[id] == nil || r.by.stock) {
			w.ledger.owner[id] = r.by
		}
		return
	}
	// I6 The report of a server that renewed its Lease within the duration is never
	// collected: so neither is its Lease, which would have its reports dropped. Time in which
	// etcd took no renewals does not count.
	id := agree.ServerID(w.api.View(e.Prev).GetName())
	if r != nil && r.role == script.Collecting && w.alive(id, r.by) {
		w.violate("I6", "%s deleted the Lease of %s, who is %s and renewed it %s before", r.by, id, w.ledger.owner[id], w.ledger.available-w.ledger.renewed[id].available)
	}
}

// alive says whether a server renewed its Lease within its duration. That is measured by a
// clock that drifts as little as clocks do. The collector may have seen two intervals too
// much for each time that its clock was set forward, and of an outage, by design, as much
// as a third of the duration: for so long a put that was seen proves that puts work.
func (w *World) alive(id agree.ServerID, by *Process) bool {
	renewed, known := w.ledger.renewed[id]
	outages, duration := w.ledger.outages-renewed.outages, leaseDuration
	if isStock(id) {
		duration = stockDuration
	}
	allowance := time.Duration(float64(duration)*2*maxDrift) +
		time.Duration(by.jumped)*2*collectInterval + time.Duration(outages)*duration/3
	return known && w.ledger.available-renewed.available < duration-allowance
}

// judgeReports checks which reports a write of a StorageVersion drops.
func (w *World) judgeReports(r *request, e etcd.Event) {
	w.noteEnd(r, e)
	if e.Prev == nil {
		return
	}
	before := w.api.View(e.Prev).(*v1alpha1.StorageVersion)
	if crd := w.api.LookDefinition(); e.KV == nil && r.role == script.Reporting && (crd == nil || crd.UID != madeFor(before) || r.by.silent) {
		return // a definition's end takes all reports with it, and so does a server whose gate is off
	}
	var kept []agree.Report
	if e.KV != nil {
		after := w.api.View(e.KV).(*v1alpha1.StorageVersion)
		kept = w.read(after).reports
		if crd := w.api.LookDefinition(); madeFor(after) == "" || crd != nil && crd.UID == madeFor(after) {
			w.judgeSilence(r, after.Name, after)
		}
	}
	for _, report := range w.read(before).reports {
		if e.KV == nil && report.Encoding == agree.Unknown {
			continue // others made it, and do so again in the next StorageVersion
		}
		if lease := w.store.Lookup(registry.KeyOf(registry.Leases, string(report.Server))); lease != nil && isStock(report.Server) && lease.CreateRevision > r.began {
			continue // this Lease was made after the task began: the one before, of the same name, was gone
		}
		_, stays := agree.Of(kept, report.Server)
		owner := w.ledger.owner[report.Server]
		// I6 The report of a server that renewed its Lease within the duration is never collected.
		if !stays && owner != r.by && w.api.Look(registry.Leases, string(report.Server)) != nil && w.alive(report.Server, r.by) {
			w.violate("I6", "%s dropped the report of %s, who is %s and has a Lease", r.by, report, owner)
		}
	}
}

// noteEnd notes a write of a StorageVersion by a server that knows that its definition
// has come to its end.
func (w *World) noteEnd(r *request, e etcd.Event) {
	if e.KV == nil || r.role != script.Reporting {
		return
	}
	if sv := w.api.View(e.KV).(*v1alpha1.StorageVersion); r.ended != "" && madeFor(sv) == r.ended {
		w.ledger.ended[sv.UID] = true
	}
}

// check looks at the stored values, if those of which the invariants speak have changed: Leases
// and migrations are not among them.
func (w *World) check() {
	if w.violation != nil {
		return
	}
	log := w.store.Log()
	matters := slices.ContainsFunc(log[w.checked:], func(e etcd.Event) bool {
		return !strings.HasPrefix(e.Key, registry.Leases.Prefix()) && !strings.HasPrefix(e.Key, registry.Migrations.Prefix())
	})
	w.checked = len(log)
	if !matters {
		return
	}
	for _, r := range object.All {
		w.checkStored(r)
	}
}

func (w *World) checkStored(r *object.Resource) {
	sv, state := w.api.LookStorageVersion(r), w.api.LookState(r)
	var view evolve.State
	current := false // whether the state's (uid, epoch) is the StorageVersion's
	if sv != nil && state != nil {
		view = migrationv1alpha1.ViewState(state)
		current = view.Of == w.read(sv).ref
	}
	var stored []string
	var uid types.UID // of the definition
	if r.Custom {
		if crd := w.api.LookDefinition(); crd != nil {
			stored, uid = crd.Status.StoredVersions, crd.UID
		}
	}
	believed := !r.Custom || !w.ledger.forged
	census := w.census(r, state, sv, believed)
	named := true // whether the stored set has every encoding
	w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
		encoding := w.encodingOf(kv)
		if w.excepted(kv) {
			return
		}
		named = named && (slices.Contains(view.Stored, encoding) || slices.Contains(view.Stored, evolve.Unknown))
		// I4 Stored set = [v] at the StorageVersion's current (uid, epoch) implies that every
		// stored object is encoded in v.
		if believed && current && len(view.Stored) == 1 && view.Stored[0] != evolve.Unknown && view.Stored[0] != encoding {
			w.violate("I4", "%s is stored in %s; %s; %s", kv.Key, encoding, view, described{sv})
		}
		// I1 Every stored object's encoding is in the stored set, or the set contains Unknown, or
		// the state's (uid, epoch) differs from the StorageVersion's.
		if believed && current && !slices.Contains(view.Stored, encoding) && !slices.Contains(view.Stored, evolve.Unknown) {
			w.violate("I1", "%s is stored in %s; %s; %s", kv.Key, encoding, view, described{sv})
		}
		// I8 The encoding of every stored custom resource is in its CRD's status.storedVersions.
		if stored != nil && w.ledger.lowered == 0 && w.ledger.madeFor[string(kv.Key)] == uid &&
			!slices.ContainsFunc(stored, func(v string) bool { return r.Encoding(v) == encoding.Plain() }) {
			w.violate("I8", "%s is stored in %s, and storedVersions is %v", kv.Key, encoding, stored)
		}
		if believed {
			w.checkVerdict(r, state, sv, encoding, string(kv.Key))
			w.checkCounted(census, sv, encoding, string(kv.Key), w.ledger.unreported[string(kv.Key)])
		}
	})
	if r.Custom && (named || state == nil) {
		w.ledger.forged = false // it is right again, or is made anew
	}
}

// excepted says whether nothing is promised of an object, because of its writer.
func (w *World) excepted(kv *mvccpb.KeyValue) bool {
	_, unnoticed := w.ledger.unnoticed[string(kv.Key)]
	return unnoticed || w.ledger.stray[string(kv.Key)]
}

// spared says which object is not migrated although it could be: an object that cannot be migrated
// does not stop the others (DESIGN 3.5).
func (w *World) spared() (why reason) {
	for _, r := range object.All {
		if r.Custom && w.api.LookDefinition() == nil {
			continue
		}
		sv := w.api.LookStorageVersion(r)
		if sv == nil {
			return because("%s has no StorageVersion", r.Name)
		}
		says := w.read(sv)
		if !says.agreed {
			return because("servers do not agree on %s", r.Name)
		}
		w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
			if encoding := w.encodingOf(kv); encoding != says.common && !object.Unmarshal(kv.Value).Broken && !w.excepted(kv) {
				why = because("%s is stored in %s, and can be migrated; %s", kv.Key, encoding, described{sv})
			}
		})
	}
	return why
}

// rest says why the world is not at rest yet:
// I7 When changes and faults stop, every resource ends with agreement and stored set = [common].
func (w *World) rest() reason {
	for _, r := range object.All {
		version := w.release().Stores
		if r.Custom {
			crd := w.api.LookDefinition()
			if crd == nil {
				continue
			}
			version = registry.StoredBy(crd)
			if len(crd.Status.StoredVersions) != 1 || crd.Status.StoredVersions[0] != version {
				return because("storedVersions of %s is %v", crd.Name, crd.Status.StoredVersions)
			}
		}
		sv, state := w.api.LookStorageVersion(r), w.api.LookState(r)
		if sv == nil || state == nil {
			return because("%s has %s and %s", r.Name, described{sv}, describedState{state})
		}
		says := w.read(sv)
		if !says.agreed || says.common.Plain() != r.Encoding(version) {
			return because("servers do not agree on %s of %s: %s", version, r.Name, described{sv})
		}
		if view := migrationv1alpha1.ViewState(state); !view.Only(says.common) || view.Of != says.ref {
			return because("%s: %s; %s", r.Name, describedState{state}, described{sv})
		}
	}
	return nil
}

func (w *World) encodingOf(kv *mvccpb.KeyValue) agree.Encoding {
	if known, ok := w.ledger.encodings[kv]; ok {
		return known
	}
	encoding, _, _ := migratestore.Envelope(kv.Value)
	w.ledger.encodings[kv] = encoding
	return encoding
}

// reading is the content of a stored StorageVersion, which never changes.
type reading struct {
	reports []agree.Report
	common  agree.Encoding
	agreed  bool
	ref     evolve.Ref // what a StorageState is compared with
}

// read reads a stored StorageVersion, each one once.
func (w *World) read(sv *v1alpha1.StorageVersion) *reading {
	r := w.ledger.readings[sv]
	if r == nil {
		r = &reading{reports: storageversion.Reports(sv), ref: evolve.Ref{UID: string(sv.UID)}}
		r.common, r.agreed = storageversion.AgreementOn(sv, r.reports)
		if history, err := storageversion.History(sv); err == nil {
			r.ref.Epoch = history.Epoch
		}
		w.ledger.readings[sv] = r
	}
	return r
}

// described is a StorageVersion that prints what it says.
type described struct{ sv *v1alpha1.StorageVersion }

func (d described) String() string {
	if d.sv == nil {
		return "no StorageVersion"
	}
	history, _ := storageversion.History(d.sv)
	common, _ := storageversion.Agreement(d.sv)
	return fmt.Sprintf("StorageVersion %s: %v common %q %s", d.sv.UID, storageversion.Reports(d.sv), common, history)
}

// describedState is a StorageState that prints what it says.
type describedState struct {
	state *migrationv1alpha1.StorageState
}

func (d describedState) String() string {
	if d.state == nil {
		return "no StorageState"
	}
	return "state " + migrationv1alpha1.ViewState(d.state).String()
}

// unserved is a 404 that no API server sent, as of a proxy.
func unserved(r *request) error {
	return apierrors.NewGenericServerResponse(404, r.verb, r.what(), r.name, "404 page not found", 0, true)
}
