package evolve

import (
	"slices"
	"testing"
	"time"
)

// TestNameTaken: the next attempt gets a name of its own beside a migration that was reset, which keeps its name and
// counts as attempt 1, and counts no more failures than there were.
func TestNameTaken(t *testing.T) {
	target := done.Target
	name := func(attempt int) string { return MigrationName(decided, target, attempt) }
	failed := func(attempt, named int) Migration {
		return Migration{Name: name(named), Made: true, Attempt: attempt, Phase: Failed, Target: target, Ended: now.Add(-time.Hour)}
	}
	reset := func(phase Phase) Migration {
		return Migration{Name: name(3), Attempt: 1, Limited: true, Phase: phase, Target: target, State: "before", Ended: now.Add(-time.Hour)}
	}
	for sentence, test := range map[string]struct {
		migrations []Migration
		name       string
		attempt    int
	}{
		"no name is taken":         {[]Migration{failed(2, 2)}, name(3), 3},
		"that of one that failed":  {[]Migration{failed(2, 3)}, name(4), 3},
		"that of one that is done": {[]Migration{failed(2, 2), reset(Succeeded)}, name(4), 3},
		"and the one after it":     {[]Migration{failed(2, 4), reset(Succeeded)}, name(5), 3},
	} {
		o := Observation{Resource: decided, Now: now, StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", "batch/v2", "batch/v1"), "now"), Migrations: test.migrations}
		actions := Decide(Believed(o))
		i := slices.IndexFunc(actions, func(a Action) bool { _, creates := a.(CreateMigration); return creates })
		if i < 0 {
			t.Errorf("%s: %v", sentence, actions)
			continue
		}
		if got := actions[i].(CreateMigration); got.Name != test.name || got.Attempt != test.attempt {
			t.Errorf("%s: %s, want %s, attempt %d", sentence, got, test.name, test.attempt)
		}
	}
}
