package worlds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/sim/invariant"
)

// discovery is a small world of its own: a cluster without StorageVersions, with one resource and one object, about
// which the trigger learns by polling the discovery document (KEP-2343; DESIGN 3.5). As the proposal requires, its
// storage version does not change twice within a period. Its decisions are evolve's; nothing in it happens
// concurrently.
type discovery struct {
	now, changed time.Time
	shown        agree.Encoding
	object       agree.Encoding // that it is stored in
	// start is when the trigger was started, zero while it is down.
	start      time.Time
	state      *evolve.State
	migrations []evolve.Migration
	polled     bool // since the last move
}

// discoveryStep is how long a wait is: the trigger polls after it.
const discoveryStep = 4 * time.Minute

// discoveryDepth is how many moves a schedule has: enough for the version to change, be
// written, and change back while the trigger is down.
const discoveryDepth = 8

var discoveryMoves = []struct {
	name string
	do   func(*discovery) bool // false: not possible now
}{
	{"wait", func(d *discovery) bool { d.now = d.now.Add(discoveryStep); d.poll(); return true }},
	{"change", (*discovery).change},
	{"write", func(d *discovery) bool { old := d.object; d.object = d.shown; return old != d.shown }},
	{"stop", func(d *discovery) bool { up := !d.start.IsZero(); d.start = time.Time{}; return up }},
	{"start", func(d *discovery) bool {
		if !d.start.IsZero() {
			return false
		}
		d.start = d.now
		d.poll()
		return true
	}},
	{"migrate", (*discovery).migrate},
}

// exhaustDiscovery tries every schedule of discoveryDepth moves.
func exhaustDiscovery(limit int) Exhausted {
	var result Exhausted
	var script []string
	var try func(d discovery)
	try = func(d discovery) {
		if len(script) == discoveryDepth {
			result.Schedules++
			return
		}
		for _, move := range discoveryMoves {
			if result.Violation != nil || result.Schedules >= limit {
				return
			}
			next := d
			next.migrations, next.polled = slices.Clone(d.migrations), false
			if !move.do(&next) {
				continue
			}
			script = append(script, move.name)
			if what := next.missed(); what != "" {
				result.Schedules++
				result.Violation = &invariant.Violation{Invariant: "I1", What: what + " after " + strings.Join(script, ", ")}
				return
			}
			try(next)
			script = script[:len(script)-1]
		}
	}
	began := time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	d := discovery{now: began, shown: "example.com/v1", object: "example.com/v1", start: began}
	d.poll()
	d.migrate()
	d.poll()
	try(d)
	result.Complete = result.Violation == nil && result.Schedules < limit
	return result
}

// change has the other version stored.
func (d *discovery) change() bool {
	if d.now.Sub(d.changed) <= evolve.DiscoveryPeriod {
		return false
	}
	d.changed = d.now
	if d.shown == "example.com/v1" {
		d.shown = "example.com/v2"
	} else {
		d.shown = "example.com/v1"
	}
	return true
}

// migrate rewrites the object as servers store it.
func (d *discovery) migrate() bool {
	i := slices.IndexFunc(d.migrations, func(m evolve.Migration) bool { return !m.Phase.Final() })
	if i < 0 {
		return false
	}
	d.object = d.shown
	d.migrations[i].Phase, d.migrations[i].Ended = evolve.Succeeded, d.now
	return true
}

// poll has the trigger look until nothing is left to be done.
func (d *discovery) poll() {
	if d.start.IsZero() {
		return
	}
	d.polled = true
	for range 10 {
		actions := evolve.Decide(evolve.Believed(evolve.Observation{
			Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Now: d.now,
			State: d.state, StorageVersion: evolve.Discovered(d.state, d.shown, d.start), Migrations: d.migrations,
		}))
		if len(actions) == 0 {
			return
		}
		for _, action := range actions {
			d.act(action)
		}
	}
}

func (d *discovery) act(action evolve.Action) {
	switch a := action.(type) {
	case evolve.WriteState:
		d.state = &a.State
	case evolve.CreateMigration:
		d.migrations = append(d.migrations, evolve.Migration{Name: a.Name, Target: a.Target, Made: true, Attempt: a.Attempt, Created: d.now})
	case evolve.DeleteMigration:
		d.migrations = slices.DeleteFunc(d.migrations, func(m evolve.Migration) bool { return m.Name == a.Name })
	}
}

// missed says how the stored set is not right although the trigger has just looked:
// I1 Every stored object's encoding is in the stored set, or the set contains Unknown.
func (d *discovery) missed() string {
	if !d.polled || slices.Contains(d.state.Stored, d.object) || slices.Contains(d.state.Stored, evolve.Unknown) {
		return ""
	}
	return fmt.Sprintf("the object is stored in %s; %s", d.object, d.state)
}
