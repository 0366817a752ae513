package evolve

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
)

// Decide returns the actions for one resource, in order. The StorageState is written first and
// alone, and the next call, with the state as written, decides about migrations: so no migration
// exists that the StorageState does not account for. Only a missing StorageState is written
// last, when the migrations made before are deleted.
func Decide(o Observation) []Action {
	o.Migrations = slices.Clone(o.Migrations)
	slices.SortFunc(o.Migrations, func(a, b Migration) int { return cmp.Compare(a.Name, b.Name) })
	if o.StorageVersion == nil {
		return decideGone(o)
	}
	if o.State == nil && len(o.StorageVersion.History.Last) == 0 {
		return nil // created, and about to be reported on
	}
	if o.NotServed() && o.Existence == Missing {
		return decideNotServed(o)
	}
	if o.State != nil && o.State.Of.UID == o.StorageVersion.UID && o.State.Of.Epoch > o.StorageVersion.History.Epoch {
		// The epoch never goes back for one uid: this is not the StorageVersion's newest.
		return []Action{Wait{For: staleWait, Why: fmt.Sprintf("the StorageVersion is at epoch %d, older than the state's", o.StorageVersion.History.Epoch)}}
	}
	if o.State != nil && o.State.Forged {
		// Its content is worth nothing: it begins anew, as after its deletion by a user.
		return []Action{DeleteState{Why: "its hashes are not those of its encodings: it was edited by hand"}}
	}
	next := nextState(o)
	if o.State == nil {
		// KEP-2343: without a state, migrations are stopped and a new one is made. No state
		// is written as long as one of them is seen: its success would count for the new
		// state, while a StorageState is deleted to have the objects migrated again.
		if actions := deleteMade(o, "the resource has no StorageState"); len(actions) > 0 {
			return actions
		}
		return []Action{WriteState{State: next}}
	}
	if !next.same(*o.State) {
		return []Action{WriteState{State: next}}
	}
	var actions []Action
	if target, agreed := o.StorageVersion.Agreement(); agreed {
		actions = append(decideMigrations(o, target), decidePrune(o, target)...)
	} else {
		actions = decideLost(o)
	}
	return append(append(actions, decideKeep(o)...), decideBeat(o)...)
}

// nextState computes the StorageState from the one observed, o.StorageVersion and the
// migrations that succeeded.
func nextState(o Observation) State {
	sv := o.StorageVersion
	next := State{Of: sv.Ref(), Current: Unknown, Heartbeat: o.Now, Custom: o.CRD != nil || sv.Custom, Definition: sv.Definition}
	var old State
	if o.State != nil {
		old = *o.State
	}
	next.Custom = next.Custom || old.Custom
	target, agreed := sv.Agreement()
	if agreed {
		next.Current = target.Encoding
	} else {
		next.Why = sv.disagreement()
	}
	switch {
	case o.State == nil && o.Policy.Initial != nil:
		next.Stored = add(o.Policy.Initial, sv.History.Reported()...)
	case old.Of.UID != sv.UID:
		next.Stored = add(old.Stored, Unknown)
	case agreed && old.Of == target.Ref && len(o.Succeeded(target)) > 0 && o.proves(target):
		next.Stored = []agree.Encoding{target.Encoding}
	default:
		next.Stored = add(old.Stored, sv.History.Since(old.Of.Epoch)...)
	}
	if o.Census != nil {
		next.Stored = add(next.Stored, o.Census.Found...)
	}
	next.Removable = removable(sv.History, next.Stored)
	next.Listed = listed(o, next.Stored)
	return next
}

// listed returns State.Listed for a state with this stored set.
func listed(o Observation, stored []agree.Encoding) []agree.Encoding {
	if !slices.Contains(stored, Unknown) {
		return nil
	}
	var seen []agree.Encoding
	if o.State != nil {
		seen = o.State.Listed
	}
	if o.CRD != nil {
		seen = add(seen, o.CRD.StoredVersions...)
	}
	return seen
}

// Counts returns the target for which the stored values have to be counted before Decide may reduce the stored set to
// one encoding, or shrink storedVersions. The StorageState and the migration alone do not prove it, since somebody may
// have edited them.
func Counts(o Observation) (Target, bool) {
	if o.State == nil || o.State.Forged || o.StorageVersion == nil {
		return Target{}, false
	}
	target, agreed := o.StorageVersion.Agreement()
	if !agreed || o.State.Of != target.Ref || o.Census != nil && o.Census.Of == target {
		return Target{}, false
	}
	if o.State.Only(target.Encoding) {
		return target, prunes(o, target)
	}
	return target, len(o.Succeeded(target)) > 0
}

// Believed returns the observation as if the count had found nothing else, for clusters whose stored values cannot be
// read.
func Believed(o Observation) Observation {
	if target, counts := Counts(o); counts {
		o.Census = &Census{Of: target}
	}
	return o
}

// proves says whether a count has found nothing but the target's encoding.
func (o Observation) proves(target Target) bool {
	return o.Census != nil && o.Census.Of == target && len(o.Census.Found) == 0
}

// refutes says whether a count has found something else.
func (o Observation) refutes(target Target) bool {
	return o.Census != nil && o.Census.Of == target && len(o.Census.Found) > 0
}

// Succeeded are the migrations that count for exactly this target.
func (o Observation) Succeeded(target Target) (all []Migration) {
	for _, m := range o.Migrations {
		if o.counts(m, target) {
			all = append(all, m)
		}
	}
	return all
}

// counts reports whether a migration has succeeded for the target. A user's migration that was adopted with another
// StorageState does not count: deleting a StorageState asks for everything to be migrated again. Times cannot decide
// this: the state has the API server's clock, and the end of a migration the migrator's.
func (o Observation) counts(m Migration, target Target) bool {
	if o.outlived(m) {
		return false
	}
	return m.Phase == Succeeded && m.Target == target
}

// outlived says whether a user's migration was adopted with another state than there is now.
func (o Observation) outlived(m Migration) bool {
	return !m.Made && o.State != nil && m.State != o.State.UID
}

// add returns the set with more encodings, new ones last.
func add(set []agree.Encoding, more ...agree.Encoding) []agree.Encoding {
	sum := slices.Clone(set)
	for _, e := range more {
		if !slices.Contains(sum, e) {
			sum = append(sum, e)
		}
	}
	return sum
}

// decideMigrations handles agreement, with a state that knows of it.
func decideMigrations(o Observation, target Target) []Action {
	var stale, starts []Action
	var tries attempts
	for _, m := range o.Migrations {
		if why := unserved(o, m); why != "" && m.Phase == Pending && m.Target != target {
			stale = append(stale, EndMigration{Name: m.Name, Reason: VersionNotServed, Why: why})
			continue
		}
		switch {
		case m.Target == target && m.Phase == Succeeded && o.refutes(target):
			stale = append(stale, EndMigration{Name: m.Name, Reason: Unproven,
				Why: "objects are stored in " + agree.Join(o.Census.Found) + " nevertheless"})
			tries.count(m)
			tries.live = true // until it counts as failed
		case m.Made && !m.Phase.Final() && o.Policy.Manual != "":
			stale = append(stale, DeleteMigration{Name: m.Name, Why: o.Policy.Manual}) // it was made before that was so
		case m.Target == target && m.Phase == Pending && o.outlived(m):
			starts = append(starts, AdoptMigration{Name: m.Name, Target: target, State: o.State.UID})
		case m.Target == target:
			tries.count(m)
		case m.created() && m.Phase == Failed && m.Limited:
			tries.former = append(tries.former, m)
		case m.Made || m.created() && m.Phase.Final():
			stale = append(stale, withdraw(m, "it was made for "+m.Target.String()))
			tries.live = tries.live || m.steered() // it begins anew, and no other one
		case m.Phase == Pending:
			// A migration that did not begin can be given another target.
			starts = append(starts, AdoptMigration{Name: m.Name, Target: target, State: o.State.UID})
		case m.Phase == Running && m.Target == (Target{}) && o.Policy.TakeOver:
			stale = append(stale, EndMigration{Name: m.Name, Reason: BegunElsewhere,
				Why: "another migrator has begun it, and does not tell what it counts for: it is done anew where it is needed"})
		case m.Phase == Running && m.Target != (Target{}):
			stale = append(stale, EndMigration{Name: m.Name, Reason: StorageVersionChanged,
				Why: fmt.Sprintf("it was made for %s, servers now agree on %s", m.Target, target)})
		}
	}
	if tries.live || o.State.Only(target.Encoding) || o.Policy.Manual != "" || o.CRD != nil && o.CRD.Deleted {
		stale = append(stale, tries.dropFormer()...)
	} else if len(starts) == 0 {
		wait := tries.wait(o.Now)
		if wait > 0 {
			return append(stale, Wait{For: wait, Why: fmt.Sprintf("%s before another migration", plural(tries.failures, "failure"))})
		}
		starts = tries.again(o, target)
	}
	if len(starts) > 0 && o.Settling > 0 {
		return append(append(stale, tellSettling(o, starts)...), Wait{For: o.Settling, Why: settling})
	}
	if wait := startingWait(o); len(starts) > 0 && wait > 0 {
		return append(stale, Wait{For: wait, Why: "servers are still starting", Starting: true})
	}
	return append(stale, starts...)
}

// unserved explains that a user's migration names a version in which no server serves the resource; "" if it names
// another one, or that is not known.
func unserved(o Observation, m Migration) string {
	served := ServedVersions(o.Resource, o.StorageVersion.Reports)
	if m.created() || m.Version == "" || len(served) == 0 || slices.Contains(served, m.Version) {
		return ""
	}
	return fmt.Sprintf("no server serves %s in version %q of spec.resource, but in %s: name one of these, or none, since it does not choose the encoding", o.Resource, m.Version, strings.Join(served, ", "))
}

// servedVersion returns a version in which the resource can be requested: the encoding's if it is served, else the
// first served one.
func servedVersion(gr schema.GroupResource, e agree.Encoding, reports []agree.Report) string {
	served := ServedVersions(gr, reports)
	if len(served) == 0 || e.Group() == gr.Group && slices.Contains(served, e.Version()) {
		return e.Version()
	}
	return served[0]
}

// ServedVersions are the versions in which any server serves the resource, sorted.
func ServedVersions(gr schema.GroupResource, reports []agree.Report) []string {
	versions := sets.New[string]()
	for _, r := range reports {
		for _, gv := range r.Served {
			if e := agree.Encoding(gv); e.Group() == gr.Group {
				versions.Insert(e.Version())
			}
		}
	}
	return sets.List(versions)
}

// decideLost handles the lack of agreement, with a state that knows of it.
func decideLost(o Observation) []Action {
	why := o.StorageVersion.disagreement()
	var actions []Action
	for _, m := range o.Migrations {
		switch {
		case m.Phase.Final():
		case m.Made:
			actions = append(actions, withdraw(m, why))
		case m.Phase == Running:
			actions = append(actions, EndMigration{Name: m.Name, Reason: AgreementLost, Why: why})
		case m.Waiting != why:
			actions = append(actions, TellWaiting{Name: m.Name, Why: why, Begins: m.Waiting == ""})
		}
	}
	return actions
}

// prunes says whether a CRD's storedVersions are more than the target's, and neither on hold nor
// to be kept.
func prunes(o Observation, target Target) bool {
	return o.CRD != nil && !o.CRD.Held && o.CRD.Storage == target.Encoding.Plain() && o.Policy.KeepStored == "" &&
		!slices.Equal(o.CRD.StoredVersions, []agree.Encoding{target.Encoding.Plain()})
}

// decidePrune removes from a CRD's status.storedVersions the versions that are no longer stored, unless that is on
// hold.
func decidePrune(o Observation, target Target) []Action {
	if !o.State.Only(target.Encoding) || !prunes(o, target) || !o.proves(target) {
		return nil
	}
	if o.Policy.PruneIn > 0 {
		return []Action{Wait{For: o.Policy.PruneIn, Why: "storedVersions are kept for a while after the proof"}}
	}
	return []Action{Prune{CRD: o.CRD.Name, Target: target}}
}

// decideKeep puts versions back into a CRD's status.storedVersions that another program, such as another migrator, has
// removed too early; otherwise they could be removed from the spec, and their objects could not be read any more.
// While the stored set has Unknown these are all versions that storedVersions were seen to name. A version that is no
// longer in the spec cannot be put back.
func decideKeep(o Observation) []Action {
	if o.CRD == nil {
		return nil
	}
	var missing []agree.Encoding
	for _, e := range append(slices.Clone(o.State.Stored), o.State.Listed...) {
		e = e.Plain()
		if slices.Contains(o.CRD.Versions, e) && !slices.Contains(o.CRD.StoredVersions, e) && !slices.Contains(missing, e) {
			missing = append(missing, e)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []Action{Keep{CRD: o.CRD.Name, Stored: missing}}
}

// Gone is the reason of a StorageState, and of migrations, whose resource no server reports.
const Gone = "the resource has no StorageVersion any more"

// decideGone handles a resource without a StorageVersion.
func decideGone(o Observation) []Action {
	actions := append(deleteMade(o, Gone), decideUnreported(o)...)
	if o.State == nil {
		return actions
	}
	if o.State.Custom && o.CRD == nil {
		return append(actions, DeleteState{Why: "its CustomResourceDefinition is gone, and all objects with it"})
	}
	next := *o.State
	next.Stored, next.Current, next.Heartbeat = add(o.State.Stored, Unknown), Unknown, o.Now
	next.Why, next.Removable, next.Listed = Gone, nil, listed(o, next.Stored)
	if !next.same(*o.State) {
		return []Action{WriteState{State: next}}
	}
	return append(append(actions, decideKeep(o)...), decideBeat(o)...)
}

// unseen explains why a migration waits while discovery does not list the resource's whole group.
const unseen = "discovery does not tell whether any server serves %q; if an aggregated API server does not answer, kubectl get apiservices says which"

// decideUnreported handles users' migrations of a resource that no server reports. A migration that has not begun gets
// time, since servers may be about to report. One that the trigger created goes when it has ended and the
// CustomResourceDefinition is gone: nothing is left that could take its limits over.
func decideUnreported(o Observation) []Action {
	undefined := o.CRD == nil && (o.State == nil || o.State.Custom)
	var actions []Action
	for _, m := range o.Migrations {
		if !m.Made && m.created() && m.Phase.Final() && undefined {
			actions = append(actions, DeleteMigration{Name: m.Name, Why: Gone})
		}
		if m.Made || m.Phase.Final() {
			continue
		}
		if m.Phase == Running {
			actions = append(actions, EndMigration{Name: m.Name, Reason: AgreementLost, Why: Gone})
			continue
		}
		end := EndMigration{Name: m.Name, Reason: ResourceNotFound, Why: fmt.Sprintf("no server serves a resource %q", o.Resource)}
		grace := missingGrace
		if o.Existence != Missing {
			end.Reason, grace = NotManaged, unmanagedGrace
			end.Why = fmt.Sprintf("no server reports how %q is stored: it is not persisted or, if built in, switched off (--runtime-config), or its aggregated API server does not report to this one", o.Resource)
		}
		wait := max(remaining(m.Created, grace, o.Now), startingWait(o))
		switch {
		case wait > 0:
			actions = append(actions, Wait{For: wait, Why: "servers may be about to report " + o.Resource.String(), Starting: len(o.Starting) > 0})
		case o.Existence == NotLooked:
			if why := fmt.Sprintf(unseen, o.Resource); m.Waiting != why {
				actions = append(actions, TellWaiting{Name: m.Name, Why: why, Begins: m.Waiting == ""})
			}
			actions = append(actions, Wait{For: missingGrace, Why: "discovery did not answer"})
		default:
			actions = append(actions, end)
		}
	}
	return actions
}

// deleteMade withdraws every migration that the trigger made.
func deleteMade(o Observation, why string) []Action {
	var actions []Action
	for _, m := range o.Migrations {
		if m.Made {
			actions = append(actions, withdraw(m, why))
		}
	}
	return actions
}

// withdraw ends a migration that the trigger made. One that a user has paused or limited begins anew with the next
// agreement: its successor would run at once, and at full speed.
func withdraw(m Migration, why string) Action {
	if m.steered() {
		return ResetMigration{Name: m.Name, Why: why}
	}
	return DeleteMigration{Name: m.Name, Why: why}
}

// steered reports whether a user has paused or limited a migration that has not finished.
func (m Migration) steered() bool { return (m.Paused || m.Limited) && !m.Phase.Final() }

// created reports whether the trigger created a migration, even if it is a user's since it was paused or limited.
func (m Migration) created() bool { return m.Made || m.Attempt > 0 }

// decideBeat refreshes the heartbeat of a state that is otherwise right.
func decideBeat(o Observation) []Action {
	if !Due(o.Resource, o.State.Heartbeat, o.Now) {
		return nil
	}
	next := *o.State
	next.Heartbeat = o.Now
	return []Action{WriteState{State: next, Beat: true}}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
