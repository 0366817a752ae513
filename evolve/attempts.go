package evolve

import (
	"slices"
	"time"
)

// attempts sums up the migrations made for one target.
type attempts struct {
	live     bool
	number   int // the highest attempt
	failures int
	failed   []Migration // those the trigger made
	// former failed for other targets. They stay until the next one takes their limits over.
	former  []Migration
	made    int       // the highest attempt of those that no user has paused or limited
	last    time.Time // when the last one failed
	lasting int       // how many in a row, that one the last, did for a reason that does not pass by itself
	// overtaken and mended are that one's.
	overtaken, mended bool
}

func (a *attempts) count(m Migration) {
	a.number = max(a.number, m.Attempt)
	if m.Made {
		a.made = max(a.made, m.Attempt)
	}
	switch {
	case !m.Phase.Final():
		a.live = true
	case m.Phase == Failed:
		a.failures++
		if m.created() {
			a.failed = append(a.failed, m)
		}
		if m.Ended.After(a.last) {
			a.last, a.lasting, a.overtaken, a.mended = m.Ended, m.Lasting, m.Overtaken, m.Mended
		}
	}
}

// wait is how long the next attempt has to be put off.
func (a *attempts) wait(now time.Time) time.Duration {
	if a.failures == 0 {
		return 0
	}
	a.failures = max(a.failures, a.made)
	switch {
	case a.lasting > 0:
		return remaining(a.last, LastingBackoff(a.lasting), now)
	case a.mended:
		return remaining(a.last, Backoff(1), now)
	case a.overtaken: // no failure of its own, but somebody may change the definition all the time
		return remaining(a.last, Backoff(min(a.failures, 4)), now)
	}
	return remaining(a.last, Backoff(a.failures), now)
}

// again replaces the failed attempts by a new one.
func (a *attempts) again(o Observation, target Target) []Action {
	actions := a.dropFormer()
	last := ""
	for _, m := range slices.Concat(a.former, a.failed) {
		if m.Limited {
			last = m.Name
		}
	}
	for _, m := range a.failed {
		actions = append(actions, DeleteMigration{Name: m.Name, Why: "it failed and is tried again"})
	}
	return append(actions, CreateMigration{
		After:   last,
		Name:    freeName(o, target, a.number+1),
		Target:  target,
		Attempt: a.number + 1,
		Lasting: a.lasting,
		Version: servedVersion(o.Resource, target.Encoding, o.StorageVersion.Reports),
	})
}

// freeName names the attempt-th migration made for a target, or one of a higher number if the name is taken: a migration
// that was reset keeps its name and counts as attempt 1. Two triggers that see different migrations may then make two
// for one target; the second finds nothing to do.
func freeName(o Observation, target Target, attempt int) string {
	name := MigrationName(o.Resource, target, attempt)
	for slices.ContainsFunc(o.Migrations, func(m Migration) bool { return m.Name == name }) {
		attempt++
		name = MigrationName(o.Resource, target, attempt)
	}
	return name
}

// dropFormer deletes the failed attempts for other targets.
func (a *attempts) dropFormer() (actions []Action) {
	for _, m := range a.former {
		actions = append(actions, DeleteMigration{Name: m.Name, Why: "it was made for " + m.Target.String()})
	}
	return actions
}
