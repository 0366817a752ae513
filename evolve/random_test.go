package evolve

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
)

var (
	seed      = flag.Uint64("seed", 0, "run only the random history of this seed")
	histories = flag.Int("histories", 1500, "random histories to run")
)

// steps is the number of random steps of a history; after them nothing changes any more.
const steps = 250

// history is a random history of one resource with servers, writers, rewriters and triggers, in
// which each API call is a step. It also has the encodings in which the objects are really stored.
type history struct {
	*world
	rnd       *rand.Rand
	tamper    tamper
	objects   [3]agree.Encoding // "" for an object that does not exist
	rewriters map[string]*rewriter
	triggers  [2]trigger
	log       []string
}

// trigger is a trigger in the middle of its work on the resource, between two API calls.
type trigger struct {
	stage    int
	o        Observation
	stateRev int
	revs     map[string]int
	todo     []Action
}

// rewriter rewrites the objects for one migration, by the rules of section 3.6.
type rewriter struct {
	target   Target
	fence    int
	next     int
	snapshot [3]agree.Encoding
}

// tamper breaks one rule, to show that the checks find it.
type tamper struct {
	name string
	// observe changes the Observation before the trigger decides.
	observe func(*Observation)
	// blind makes the trigger write the state without comparing its resourceVersion.
	blind bool
}

func newHistory(seed uint64, tamper tamper) *history {
	return &history{world: newWorld(), rnd: rand.New(rand.NewPCG(seed, 1)), tamper: tamper, rewriters: map[string]*rewriter{}}
}

func (h *history) step() {
	h.now = h.now.Add(time.Duration(h.rnd.IntN(5)) * time.Second)
	switch n := h.rnd.IntN(100); {
	case n < 10:
		h.changeReports()
	case n < 30:
		h.write()
	case n < 65:
		h.look(&h.triggers[h.rnd.IntN(len(h.triggers))])
	case n < 91:
		h.rewrite()
	case n < 93:
		name := fmt.Sprintf("user%d", h.rev)
		h.migrations[name] = &object[Migration]{value: Migration{Name: name, Created: h.now}, rev: h.next()}
	case n < 99:
		if h.sv != nil && len(h.sv.value.Reports) == 0 {
			h.note("collect")
			h.sv = nil
		}
	default:
		h.note("delete state")
		h.state = nil
	}
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// changeReports lets a server join, leave or change its encoding.
func (h *history) changeReports() {
	var reports []agree.Report
	if h.sv != nil {
		reports = slices.Clone(h.sv.value.Reports)
	}
	own := agree.Report{Server: agree.ServerID('a' + rune(h.rnd.IntN(2))), Encoding: agree.Encoding([]string{"batch/v1", "batch/v2"}[h.rnd.IntN(2)])}
	reports = agree.Without(reports, own.Server)
	if h.rnd.IntN(2) == 0 {
		reports = append(reports, own)
	}
	h.report(reports)
	h.note("reports %v", reports)
}

// write lets a server that has a report write an object; the fence refuses all others.
func (h *history) write() {
	if h.sv == nil || len(h.sv.value.Reports) == 0 {
		return
	}
	r := h.sv.value.Reports[h.rnd.IntN(len(h.sv.value.Reports))]
	i := h.rnd.IntN(len(h.objects))
	h.objects[i] = r.Encoding
	h.note("%s writes object %d in %s", r.Server, i, r.Encoding)
}

// look does the trigger's next API call.
func (h *history) look(t *trigger) {
	switch t.stage {
	case 0:
		*t = trigger{}
		t.stateRev = h.observeState(&t.o)
	case 1:
		h.observeVersion(&t.o)
	case 2:
		t.revs = h.observeRest(&t.o)
		if h.tamper.observe != nil {
			h.tamper.observe(&t.o)
		}
		t.o = Believed(t.o)
		t.todo = Decide(t.o)
	default:
		if len(t.todo) == 0 {
			t.stage = 0
			return
		}
		a := t.todo[0]
		t.todo = t.todo[1:]
		if _, ok := a.(WriteState); ok && h.tamper.blind {
			t.stateRev = 0
			if h.state != nil {
				t.stateRev = h.state.rev
			}
		}
		err := h.apply(a, t.stateRev, t.revs)
		h.note("%s: %v", a, err)
		if err != nil {
			t.stage = 0
			return
		}
	}
	t.stage++
}

// rewrite does the next step of some migration.
func (h *history) rewrite() {
	names := slices.Sorted(maps.Keys(h.migrations))
	if len(names) == 0 {
		return
	}
	name := names[h.rnd.IntN(len(names))]
	m := h.migrations[name]
	if m.value.Phase.Final() {
		delete(h.rewriters, name)
		return
	}
	r := h.rewriters[name]
	switch {
	case m.value.Target == (Target{}):
	case r == nil || r.target != m.value.Target:
		if m.value.Phase != Pending || !h.fenced(&rewriter{target: m.value.Target}) {
			return
		}
		_ = h.change(name, m.rev, func(m *Migration) { m.Phase = Running })
		h.rewriters[name] = &rewriter{target: m.value.Target, fence: h.sv.rev, snapshot: h.objects}
		h.note("%s begins", name)
	case r.next < len(h.objects):
		h.rewriteNext(name, r)
	default:
		end := Succeeded
		if !h.fenced(r) {
			end = Failed
		}
		_ = h.change(name, m.rev, func(m *Migration) { m.Phase, m.Ended = end, h.now })
		h.note("%s ends: %s", name, end)
	}
}

// fenced says whether the StorageVersion still has the rewriter's target: the servers agree on it
// at the same uid and epoch.
func (h *history) fenced(r *rewriter) bool {
	if h.sv == nil {
		return false
	}
	now, agreed := h.sv.value.Agreement()
	return agreed && now == r.target
}

func (h *history) rewriteNext(name string, r *rewriter) {
	i := r.next
	if r.snapshot[i] != "" && r.snapshot[i] != r.target.Encoding {
		if h.sv == nil || h.sv.rev != r.fence {
			if !h.fenced(r) {
				_ = h.change(name, h.migrations[name].rev, func(m *Migration) { m.Phase, m.Ended = Failed, h.now })
				h.note("%s fails", name)
				return
			}
			r.fence = h.sv.rev
		}
		h.objects[i] = r.target.Encoding
		h.note("%s rewrites object %d in %s", name, i, r.target.Encoding)
	}
	r.next++
}

// check returns an error if an invariant of section 3.7 does not hold.
func (h *history) check() error {
	if h.state == nil {
		return nil
	}
	state := h.state.value
	current := h.sv != nil && state.Of == h.sv.value.Ref()
	for i, e := range h.objects {
		if e == "" || !current {
			continue
		}
		if !slices.Contains(state.Stored, e) && !slices.Contains(state.Stored, Unknown) {
			return fmt.Errorf("I1: object %d is stored in %s, which is not in the stored set of %s", i, e, state)
		}
		if len(state.Stored) == 1 && state.Stored[0] != Unknown && state.Stored[0] != e {
			return fmt.Errorf("I4: object %d is stored in %s, the state is %s", i, e, state)
		}
	}
	return nil
}

func (h *history) run() error {
	for range steps {
		before := h.state
		h.step()
		if before != nil && h.state != nil && before.value.Of.UID == h.state.value.Of.UID && before.value.Of.Epoch > h.state.value.Of.Epoch {
			return fmt.Errorf("the epoch of the state went back from %s to %s", before.value, h.state.value)
		}
		if err := h.check(); err != nil {
			return err
		}
	}
	return h.settleDown()
}

// settleDown stops all changes and checks I7: every resource ends with stored set = [common].
func (h *history) settleDown() error {
	h.report([]agree.Report{{Server: "a", Encoding: "batch/v2"}})
	h.note("everything is quiet")
	for range 3000 {
		h.now = h.now.Add(5 * time.Second)
		h.look(&h.triggers[h.rnd.IntN(2)])
		h.rewrite()
		if err := h.check(); err != nil {
			return err
		}
		if h.state != nil && h.state.value.Of == h.sv.value.Ref() && h.state.value.Only("batch/v2") {
			return nil
		}
	}
	return fmt.Errorf("I7: does not settle:\n%s", h)
}

// TestInvariants runs random histories. After every step it checks I1, I4 and I7 of section 3.7
// against the encodings in which the objects are really stored.
func TestInvariants(t *testing.T) {
	for s := range uint64(*histories) {
		if *seed != 0 {
			s = *seed
		}
		h := newHistory(s, tamper{})
		if err := h.run(); err != nil {
			t.Fatalf("%v\nrerun with: go test ./evolve -run TestInvariants -seed %d\n%s", err, s, strings.Join(h.log, "\n"))
		}
	}
}

// TestInvariantsSee shows that the check of TestInvariants works: it finds a violation if one rule
// is dropped.
func TestInvariantsSee(t *testing.T) {
	tampers := []tamper{
		{name: "the stored set gains only what is reported now", observe: func(o *Observation) {
			if o.StorageVersion != nil {
				last := maps.Clone(o.StorageVersion.History.Last)
				maps.DeleteFunc(last, func(_ agree.Encoding, at int64) bool { return at != o.StorageVersion.History.Epoch })
				o.StorageVersion.History.Last = last
			}
		}},
		{name: "success counts for any epoch", observe: func(o *Observation) {
			for i := range o.Migrations {
				if o.StorageVersion != nil && o.Migrations[i].Phase == Succeeded {
					o.Migrations[i].Target.Ref = o.StorageVersion.Ref()
				}
			}
		}},
		{name: "another uid is taken for the same", observe: func(o *Observation) {
			if o.State != nil && o.StorageVersion != nil && o.State.Of.Epoch <= o.StorageVersion.History.Epoch {
				o.State.Of.UID = o.StorageVersion.UID
			}
		}},
		{name: "the state is written without its resourceVersion", blind: true},
	}
	for _, tamper := range tampers {
		t.Run(tamper.name, func(t *testing.T) {
			for s := range uint64(20000) {
				if err := newHistory(s, tamper).run(); err != nil && !strings.HasPrefix(err.Error(), "I7") {
					t.Logf("seed %d: %v", s, err)
					return
				}
			}
			t.Fatal("no violation found: the check is blind or the rule is not needed")
		})
	}
}
