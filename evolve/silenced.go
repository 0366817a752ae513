package evolve

import "slices"

// Silenced names the last epoch at which a server that does not report took part, where objects
// may still be stored as nobody can tell: the stored set holds Unknown. Such a server has no fence,
// and its identity Lease may go long before its last write: a kube-apiserver without Concord deletes
// it when it is told to stop, and then serves on and completes requests. So no migration begins
// before such requests must have ended; else the migration succeeds, and the objects that come
// after it stay. The Ref stays the same as long as no other such server has come, and Reported
// does not name Unknown.
func Silenced(o Observation) (Ref, bool) {
	if o.State == nil || o.StorageVersion == nil || !slices.Contains(o.State.Stored, Unknown) {
		return Ref{}, false
	}
	sv := o.StorageVersion
	at := max(sv.History.Last[Unknown], sv.History.Forgotten)
	if at == 0 || slices.Contains(sv.History.Reported(), Unknown) {
		return Ref{}, false
	}
	return Ref{UID: sv.UID, Epoch: at}, true
}

// settling is why no migration begins.
const settling = "a server that did not report how it stores objects has gone a short time ago, and may still complete writes: migrations begin after the time of --migration-settle"

// tellSettling has users' migrations say why they do not begin.
func tellSettling(o Observation, starts []Action) []Action {
	var told []Action
	for _, m := range o.Migrations {
		adopts := slices.ContainsFunc(starts, func(a Action) bool { adopt, ok := a.(AdoptMigration); return ok && adopt.Name == m.Name })
		if adopts && m.Waiting != settling {
			told = append(told, TellWaiting{Name: m.Name, Why: settling, Begins: m.Waiting == ""})
		}
	}
	return told
}
