package observed

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

var (
	seed      = flag.Uint64("seed", 0, "run only the random history of this seed")
	histories = flag.Int("histories", 250, "random histories to run")
)

const (
	// late is how long a request may take, unless its kube-apiserver is paused.
	late = settle
	// gap is Config.Gap.
	gap = 40 * time.Second
)

// history is a random history of one custom resource. The storage version of its definition changes, also between two rounds
// and while no controllers run. The controllers are restarted, crash between two writes, and cannot ask for a while, in which
// a kube-apiserver may be paused in a write. A second kube-apiserver loses its Lease and goes on with a watch that has ended.
// The history has the versions that are really stored, beside those that the controllers know.
type history struct {
	rnd    *rand.Rand
	tamper tamper
	now    time.Time

	current    agree.Encoding // the storage version of the definition
	generation int64
	stored     []agree.Encoding // storedVersions
	said       []agree.Encoding // storage versions of the definition since the last round
	// written has the time at which the last request that writes a version began; objects are the stored versions.
	written map[agree.Encoding]time.Time
	objects map[agree.Encoding]bool

	memory     *Memory
	state      *evolve.State
	migrations []evolve.Migration
	begun      map[string]time.Time // when each migration began

	places Places
	second second

	pruned, migrated int
	wrong            string
}

// second is a second kube-apiserver.
type second struct {
	leased bool
	// until is the time until which it serves after it has lost its Lease, and stores the version that it writes then.
	until  time.Time
	stores agree.Encoding
}

func (s second) ending(now time.Time) bool { return !s.leased && now.Before(s.until) }

// tamper breaks one rule, to show that the checks find it.
type tamper struct {
	name string
	// deaf drops the changes of the definition between rounds, blind ignores gaps, and hasty does not ask a kube-apiserver
	// without a Lease any more.
	deaf, blind, hasty bool
}

var randomVersions = []agree.Encoding{"example.com/v1", "example.com/v2", "example.com/v3"}

func newHistory(seed uint64, tamper tamper) *history {
	h := &history{
		rnd: rand.New(rand.NewPCG(seed, 1)), tamper: tamper, now: start, current: randomVersions[0], generation: 1, stored: randomVersions[:1:1],
		written: map[agree.Encoding]time.Time{randomVersions[0]: start}, objects: map[agree.Encoding]bool{randomVersions[0]: true}, begun: map[string]time.Time{},
	}
	h.restart()
	return h
}

func (h *history) fail(format string, args ...any) {
	if h.wrong == "" {
		h.wrong = fmt.Sprintf("after %v: ", h.now.Sub(start)) + fmt.Sprintf(format, args...)
	}
}

func (h *history) restart() {
	c := Config{Settle: settle, Gap: gap}
	if h.tamper.blind {
		c.Gap = 0
	}
	if h.state != nil {
		c.States = map[schema.GroupResource]evolve.State{widgets: *h.state}
	}
	h.memory, h.said, h.places = NewMemory(c), nil, Places{}
}

func (h *history) pass(d time.Duration) {
	if s := h.second; s.ending(h.now) {
		h.written[s.stores], h.objects[s.stores] = h.now.Add(min(d, s.until.Sub(h.now))), true
	}
	h.now = h.now.Add(d)
	h.written[h.current] = h.now
}

// change makes the second kube-apiserver lose its Lease, if the controllers have seen it, or start.
func (h *history) change() {
	switch s := &h.second; {
	case s.leased && h.places.known[replica("b", "1").Process] != nil:
		*s = second{until: h.now.Add(time.Duration(h.rnd.IntN(400)) * time.Second), stores: h.current}
	case !s.ending(h.now):
		s.leased = true
	}
}

// asked returns the answers of the kube-apiservers that are known and answer.
func (h *history) asked() map[string]Answer {
	a, b := replica("a", "1"), replica("b", "1")
	b.Address = "127.0.0.1:2"
	leased := []Replica{a}
	if h.second.leased {
		leased = append(leased, b)
	}
	answers := map[string]Answer{}
	for _, r := range h.places.Take(leased, h.now) {
		switch ending := h.second.ending(h.now); {
		case r.Lease == "a" || h.second.leased:
			answers[string(r.Lease)] = shows(widgets, string(h.current))
		case !ending:
			h.places.Missed(r.Process, true, h.now)
		case !h.tamper.hasty:
			answers[string(r.Lease)] = shows(widgets, string(h.second.stores))
		}
	}
	return answers
}

// flip changes the storage version of the definition, or only its generation.
func (h *history) flip() {
	h.current = randomVersions[h.rnd.IntN(len(randomVersions))]
	h.generation++
	if !slices.Contains(h.stored, h.current) {
		h.stored = append(slices.Clone(h.stored), h.current)
	}
	h.said = append(h.said, h.current)
	h.written[h.current], h.objects[h.current] = h.now, true
}

func (h *history) flips(n int) {
	for range n {
		h.flip()
		h.pass(time.Second)
	}
}

// others returns the versions, except the current one, in which objects are stored or may still be written.
func (h *history) others() (all []agree.Encoding) {
	for _, v := range randomVersions {
		if at, ok := h.written[v]; v != h.current && (h.objects[v] || ok && h.now.Sub(at) < late) {
			all = append(all, v)
		}
	}
	return all
}

// away is a time in which the controllers cannot ask, and a kube-apiserver that was paused in the middle of a write goes on.
// The same controllers look next: new ones would not know of the gap, and take the pause for short.
func (h *history) away() {
	h.pass(gap + time.Duration(1+h.rnd.IntN(60))*time.Second)
	v := h.stored[h.rnd.IntN(len(h.stored))]
	h.written[v], h.objects[v] = h.now, true
	h.look()
}

// end ends running migrations; these have written every object in the current version.
func (h *history) end() {
	for i := range h.migrations {
		m := &h.migrations[i]
		if m.Phase != evolve.Running || h.now.Sub(h.begun[m.Name]) <= 20*time.Second {
			continue
		}
		m.Phase, m.Ended = evolve.Succeeded, h.now
		h.migrated++
		for v := range h.objects {
			if v != h.current && !h.written[v].Add(late).After(h.begun[m.Name]) {
				delete(h.objects, v)
			}
		}
	}
}

func (h *history) observe() *evolve.StorageVersion {
	h.memory.Observe(defined(round(h.now.Sub(start), h.asked()), string(h.current), func(d *Definition) {
		d.Stored, d.Revision = slices.Clone(h.stored), RevisionOf("u", h.generation)
		d.Versions = append(d.Versions, schema.GroupVersion{Group: "example.com", Version: "v3"})
		if !h.tamper.deaf {
			d.Said = h.said
		}
	}))
	h.said = nil
	seen, _ := h.memory.Of(widgets)
	return &evolve.StorageVersion{UID: seen.UID, History: seen.History, Reports: seen.Reports, Common: seen.Common, Silent: seen.Why, Definition: string(seen.Definition), Custom: true}
}

// look does several steps of the trigger, since it writes the StorageState before it does anything else.
func (h *history) look() {
	for range 3 {
		o := evolve.Observation{Resource: widgets, Now: h.now, State: h.state, Migrations: h.migrations, StorageVersion: h.observe(),
			CRD: &evolve.CRD{Name: "widgets.example.com", Storage: h.current, Versions: randomVersions, StoredVersions: h.stored}}
		o.Policy = Policy(o, nil, Settings{BuiltIn: true}, h.now, false)
		for _, action := range evolve.Decide(evolve.Believed(o)) {
			h.act(action)
		}
	}
	if h.state != nil && !slices.Contains(h.state.Stored, evolve.Unknown) && len(h.said) == 0 {
		for _, v := range randomVersions {
			if h.objects[v] && !slices.Contains(h.state.Stored, v) {
				h.fail("the state is %+v, and objects are stored in %s", *h.state, v)
			}
		}
	}
}

func (h *history) act(action evolve.Action) {
	switch a := action.(type) {
	case evolve.WriteState:
		if h.state != nil && h.rnd.IntN(4) == 0 {
			a.State.Definition = h.state.Definition // the annotation is written after the status, unless there is a crash
		}
		h.state = &a.State
	case evolve.DeleteState:
		h.state = nil
	case evolve.CreateMigration:
		h.migrations = append(h.migrations, evolve.Migration{Name: a.Name, Target: a.Target, Made: true, Attempt: a.Attempt, Phase: evolve.Running})
		h.begun[a.Name] = h.now
	case evolve.DeleteMigration:
		h.migrations = slices.DeleteFunc(h.migrations, func(m evolve.Migration) bool { return m.Name == a.Name })
	case evolve.Prune:
		if h.rnd.IntN(3) == 0 {
			h.flip() // makes the update a conflict
			return
		}
		if others := h.others(); len(others) > 0 {
			h.fail("storedVersions are pruned to %s, and objects may be stored in %v", h.current, others)
		}
		h.stored = []agree.Encoding{a.Target.Encoding}
		h.pruned++
	}
}

func (h *history) step() {
	h.pass(time.Duration(1+h.rnd.IntN(30)) * time.Second)
	switch h.rnd.IntN(15) {
	case 0:
		h.flips(1 + h.rnd.IntN(2))
	case 1:
		if h.second.ending(h.now) {
			break // new controllers do not know of it
		}
		away := time.Duration(h.rnd.IntN(140)) * time.Second
		h.pass(away)
		h.flips(h.rnd.IntN(4))
		h.pass(away)
		h.restart()
	case 2:
		if h.rnd.IntN(6) == 0 {
			h.state = nil
		}
	case 3, 4, 5:
		h.end()
	case 6:
		if h.memory.resources[widgets] != nil {
			h.away()
		}
	case 7:
		h.change()
	}
	if h.rnd.IntN(3) > 0 {
		h.look()
	}
}

// run runs the history and returns what went wrong, or "".
func (h *history) run() string {
	for range 150 {
		if h.step(); h.wrong != "" {
			break
		}
	}
	return h.wrong
}

// TestRandom: no StorageState ever lacks a version in which objects are stored, and storedVersions are pruned only if no
// other version is stored or may still be written.
func TestRandom(t *testing.T) {
	pruned, migrated := 0, 0
	for s := range uint64(*histories) {
		if s++; *seed != 0 && s != *seed {
			continue
		}
		h := newHistory(s, tamper{})
		if wrong := h.run(); wrong != "" {
			t.Fatalf("seed %d: %s\ngo test ./stock/observed -run 'TestRandom$' -seed=%d", s, wrong, s)
		}
		pruned, migrated = pruned+h.pruned, migrated+h.migrated
	}
	if t.Logf("%d times pruned, %d migrations", pruned, migrated); *seed == 0 && pruned < *histories {
		t.Errorf("pruned %d times only, after %d migrations", pruned, migrated)
	}
}

// TestRandomSees: without one of the rules, the checks find a violation.
func TestRandomSees(t *testing.T) {
	for _, tamper := range []tamper{{name: "no round hears of flips", deaf: true}, {name: "gaps pass unseen", blind: true}, {name: "who has no Lease is gone", hasty: true}} {
		found := false
		for s := uint64(1); s <= 2000 && !found; s++ {
			found = newHistory(s, tamper).run() != ""
		}
		if !found {
			t.Errorf("%s, and nothing goes wrong", tamper.name)
		}
	}
}
