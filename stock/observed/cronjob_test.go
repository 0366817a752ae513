package observed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

// life is the history of one resource: its objects in the API, and controllers that look at them and forget
// everything when they are restarted.
type life struct {
	t     *testing.T
	now   time.Time
	gr    schema.GroupResource
	shown string
	// stored are the storedVersions of the definition, if it is a custom resource; generation is the
	// definition's.
	stored     []agree.Encoding
	generation int64
	memory     *Memory
	state      *evolve.State
	migrations []evolve.Migration
}

// restart restarts the controllers after a time.
func (l *life) restart(after time.Duration) {
	l.now = l.now.Add(after)
	states := map[schema.GroupResource]evolve.State{}
	if l.state != nil {
		states[l.gr] = *l.state
	}
	l.memory = NewMemory(Config{Settle: settle, States: states})
}

// look lets the controllers do everything that is due, for long enough to settle.
func (l *life) look() {
	l.t.Helper()
	for range 8 {
		l.now = l.now.Add(settle / 2)
		r := round(l.now.Sub(start), map[string]Answer{"a": shows(l.gr, l.shown)})
		if l.stored != nil {
			r = defined(r, l.shown, func(d *Definition) { d.Stored, d.Revision = l.stored, RevisionOf("u", l.generation) })
		}
		l.memory.Observe(r)
		seen, _ := l.memory.Of(l.gr)
		o := evolve.Observation{Resource: l.gr, Now: l.now, State: l.state, Migrations: l.migrations,
			StorageVersion: &evolve.StorageVersion{UID: seen.UID, History: seen.History, Reports: seen.Reports, Common: seen.Common, Silent: seen.Why, Definition: string(seen.Definition)}}
		if l.stored != nil {
			o.CRD = &evolve.CRD{Name: l.gr.String(), Storage: agree.Encoding(l.shown), Versions: l.stored, StoredVersions: l.stored}
		}
		o.Policy = Policy(o, nil, Settings{BuiltIn: true}, l.now, l.state != nil)
		for _, action := range evolve.Decide(evolve.Believed(o)) {
			switch a := action.(type) {
			case evolve.WriteState:
				l.state = &a.State
			case evolve.CreateMigration:
				l.migrations = append(l.migrations, evolve.Migration{Name: a.Name, Target: a.Target, Made: true, Attempt: a.Attempt})
			case evolve.Prune:
				l.stored = []agree.Encoding{a.Target.Encoding}
			case evolve.DeleteMigration:
				l.migrations = slices.DeleteFunc(l.migrations, func(m evolve.Migration) bool { return m.Name == a.Name })
			}
		}
	}
}

// succeed sets the running migration to Succeeded.
func (l *life) succeed() {
	for i := range l.migrations {
		l.migrations[i].Phase, l.migrations[i].Ended = evolve.Succeeded, l.now
	}
	l.look()
}

// is compares the state, and the migrations under way, with what is wanted.
func (l *life) is(step, current string, migrating string, stored ...agree.Encoding) {
	l.t.Helper()
	var live string
	for _, m := range l.migrations {
		if !m.Phase.Final() {
			live += string(m.Target.Encoding)
		}
	}
	if got := fmt.Sprintf("%s %v %s", l.state.Current, l.state.Stored, live); got != fmt.Sprintf("%s %v %s", current, stored, migrating) {
		l.t.Errorf("%s: %s; want %s %v %s", step, got, current, stored, migrating)
	}
}

// TestCronJob is the example of CronJob in KEP-2343, "Life-cycle of a StorageState object", with the
// consequences of the rule of ten minutes.
func TestCronJob(t *testing.T) {
	const alpha, beta = agree.Encoding("batch/v2alpha1"), agree.Encoding("batch/v1beta1")
	l := &life{t: t, now: start, gr: cronjobs, shown: string(alpha)}
	l.restart(0)
	l.look()
	l.is("installed for the first time", string(alpha), string(alpha), agree.Unknown)
	l.succeed()
	l.is("migrated", string(alpha), "", alpha)
	l.restart(4 * time.Minute) // the last heartbeat may be five minutes older
	l.look()
	l.is("offline for less than 10 minutes", string(alpha), "", alpha)
	l.shown = string(beta)
	l.look()
	l.is("upgraded", string(beta), string(beta), alpha, beta)
	l.shown = string(alpha)
	l.look()
	l.is("downgraded before it was migrated", string(alpha), string(alpha), alpha, beta)
	l.succeed()
	l.is("migrated back", string(alpha), "", alpha)
	l.restart(11 * time.Minute)
	l.look()
	l.is("offline for more, the same release", string(alpha), "", alpha, agree.Unknown)
	l.shown = string(beta)
	l.look()
	l.is("and upgraded again", string(beta), string(beta), alpha, agree.Unknown, beta)
	l.succeed()
	l.is("and migrated", string(beta), "", beta)
}

// TestFlippedWhileOff: a definition was changed and changed back while no controllers ran, for less than ten
// minutes. Its storedVersions show that, and are not pruned before the objects are migrated.
func TestFlippedWhileOff(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	l := &life{t: t, now: start, gr: widgets, shown: string(v1), stored: []agree.Encoding{v1}}
	l.restart(0)
	l.look()
	l.is("installed for the first time", string(v1), "", v1)
	l.stored = []agree.Encoding{v1, v2}
	l.generation += 2
	l.restart(4 * time.Minute)
	l.look()
	l.is("v1, v2, v1 while nobody looked", string(v1), string(v1), v1, v2)
	if !slices.Equal(l.stored, []agree.Encoding{v1, v2}) {
		t.Errorf("storedVersions are pruned to %v although objects may be stored in v2", l.stored)
	}
	l.succeed()
	l.is("migrated", string(v1), "", v1)
	if !slices.Equal(l.stored, []agree.Encoding{v1}) {
		t.Errorf("storedVersions are %v", l.stored)
	}
}

// TestFlippedInMigration: a definition was changed and changed back while no controllers ran, during a
// migration or after its end, before that was counted. The objects are migrated once more.
func TestFlippedInMigration(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	for name, test := range map[string]struct {
		ended bool  // the migration has ended before the restart
		by    int64 // number of changes of the definition meanwhile
		again bool  // everything is migrated once more
	}{
		"not changed, it goes on":               {false, 0, false},
		"not changed, and it had ended":         {true, 0, false},
		"flipped in mid-migration":              {false, 2, true},
		"flipped when it had ended":             {true, 2, true},
		"changed in another part, as it may be": {false, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &life{t: t, now: start, gr: widgets, shown: string(v1), stored: []agree.Encoding{v1}}
			l.restart(0)
			l.look()
			l.shown, l.stored, l.generation = string(v2), []agree.Encoding{v1, v2}, 1
			l.look()
			l.is("flipped", string(v2), string(v2), v1, v2)
			before := l.migrations[0].Target
			if test.ended {
				l.migrations[0].Phase, l.migrations[0].Ended = evolve.Succeeded, l.now
			}
			l.generation += test.by
			l.restart(time.Minute)
			l.look()
			switch {
			case test.again:
				l.is("afterwards", string(v2), string(v2), v1, v2)
				if now := l.migrations[0].Target; now == before {
					t.Errorf("the migration counts for %s, as before", now)
				}
			case test.ended:
				l.is("afterwards", string(v2), "", v2)
			default:
				l.is("afterwards", string(v2), string(v2), v1, v2)
				if now := l.migrations[0].Target; now != before {
					t.Errorf("the migration for %s was made anew for %s", before, now)
				}
			}
			l.succeed()
			l.is("at last", string(v2), "", v2)
		})
	}
}
