package evolve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

var errConflict = errors.New("conflict")

// object is an API object with the revision of its last write.
type object[T any] struct {
	value T
	rev   int
}

// world has the API objects of one resource, as an API server would keep them.
type world struct {
	gr         schema.GroupResource
	now        time.Time
	rev        int
	uids       int
	sv         *object[StorageVersion]
	state      *object[State]
	migrations map[string]*object[Migration]
	crd        *object[CRD]
	existence  Existence
	starting   []Starting
}

func newWorld() *world {
	return &world{
		gr:         schema.GroupResource{Group: "batch", Resource: "cronjobs"},
		now:        time.Date(2019, 3, 25, 12, 0, 0, 0, time.UTC),
		migrations: map[string]*object[Migration]{},
		existence:  Served,
	}
}

func (w *world) next() int {
	w.rev++
	return w.rev
}

// report sets the reports and computes the history, as the strategy of StorageVersions does.
func (w *world) report(reports []agree.Report) {
	if w.sv == nil {
		if len(reports) == 0 {
			return
		}
		w.uids++
		w.sv = &object[StorageVersion]{value: StorageVersion{UID: fmt.Sprintf("sv%d", w.uids)}}
	}
	sv := w.sv.value
	sv.Reports = reports
	sv.Common, _ = agree.Common(reports)
	sv.Silent = ""
	if silent := agree.Silent(reports); len(silent) > 0 {
		sv.Silent = fmt.Sprintf("%v do not report", silent)
	}
	sv.History = sv.History.Next(reports)
	w.sv = &object[StorageVersion]{value: sv, rev: w.next()}
}

func (w *world) observeState(o *Observation) int {
	o.Resource, o.Now = w.gr, w.now
	if w.state == nil {
		return 0
	}
	state := w.state.value
	o.State = &state
	return w.state.rev
}

func (w *world) observeVersion(o *Observation) {
	if w.sv != nil {
		sv := w.sv.value
		o.StorageVersion = &sv
	}
}

func (w *world) observeRest(o *Observation) map[string]int {
	revs := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(w.migrations)) {
		o.Migrations = append(o.Migrations, w.migrations[name].value)
		revs[name] = w.migrations[name].rev
	}
	if w.crd != nil {
		crd := w.crd.value
		o.CRD = &crd
	}
	o.Existence, o.Starting = w.existence, w.starting
	return revs
}

// apply does one write as the API does: it fails if the object is not at the revision that was
// read.
func (w *world) apply(a Action, stateRev int, revs map[string]int) error {
	switch a := a.(type) {
	case WriteState:
		if (w.state == nil) != (stateRev == 0) || w.state != nil && w.state.rev != stateRev {
			return errConflict
		}
		uid := fmt.Sprint(w.rev)
		if w.state != nil {
			uid = w.state.value.UID
		}
		w.state = &object[State]{value: a.State, rev: w.next()}
		w.state.value.UID = uid
	case DeleteState:
		if w.state == nil || w.state.rev != stateRev {
			return errConflict
		}
		w.state = nil
	case CreateMigration:
		if w.migrations[a.Name] != nil {
			return errConflict
		}
		w.migrations[a.Name] = &object[Migration]{rev: w.next(), value: Migration{
			Name: a.Name, Target: a.Target, Made: true, Attempt: a.Attempt, Created: w.now}}
	case DeleteMigration:
		delete(w.migrations, a.Name)
	case ResetMigration:
		return w.change(a.Name, revs[a.Name], func(m *Migration) {
			m.Target, m.Phase, m.Made, m.Waiting = Target{}, Pending, false, ""
			m.Attempt = min(m.Attempt, 1)
		})
	case AdoptMigration:
		return w.change(a.Name, revs[a.Name], func(m *Migration) { m.Target, m.State, m.Waiting = a.Target, a.State, "" })
	case TellWaiting:
		return w.change(a.Name, revs[a.Name], func(m *Migration) { m.Waiting = a.Why })
	case EndMigration:
		return w.change(a.Name, revs[a.Name], func(m *Migration) { m.Phase, m.Ended = Failed, w.now })
	case Prune:
		w.prune(a)
	case Keep:
		crd := w.crd.value
		crd.StoredVersions = add(crd.StoredVersions, a.Stored...)
		w.crd = &object[CRD]{value: crd, rev: w.next()}
	case Wait:
	default:
		panic(fmt.Sprintf("unknown action %T", a))
	}
	return nil
}

func (w *world) change(name string, rev int, change func(*Migration)) error {
	m := w.migrations[name]
	if m == nil || m.rev != rev {
		return errConflict
	}
	value := m.value
	change(&value)
	w.migrations[name] = &object[Migration]{value: value, rev: w.next()}
	return nil
}

func (w *world) prune(a Prune) {
	if w.crd == nil || w.crd.value.Storage != a.Target.Encoding || w.sv == nil {
		return
	}
	if now, agreed := w.sv.value.Agreement(); !agreed || now != a.Target {
		return
	}
	crd := w.crd.value
	crd.StoredVersions = []agree.Encoding{a.Target.Encoding}
	w.crd = &object[CRD]{value: crd, rev: w.next()}
}

// look reads the objects, decides and applies all actions, as a trigger does that runs alone.
func (w *world) look() []Action {
	var o Observation
	stateRev := w.observeState(&o)
	w.observeVersion(&o)
	revs := w.observeRest(&o)
	actions := Decide(Believed(o))
	for _, a := range actions {
		if err := w.apply(a, stateRev, revs); err != nil {
			panic(fmt.Sprintf("%s: %v", a, err))
		}
		if s, ok := a.(WriteState); ok && s.State.Heartbeat.Equal(w.now) && w.state != nil {
			stateRev = w.state.rev
		}
	}
	return actions
}

// settle calls look until there is nothing more to do, and returns what was done.
func (w *world) settle() string {
	var b strings.Builder
	for range 20 {
		actions := w.look()
		waiting := true
		for _, a := range actions {
			fmt.Fprintln(&b, a)
			if _, ok := a.(Wait); !ok {
				waiting = false
			}
		}
		if waiting {
			if b.Len() == 0 {
				return "nothing to do\n"
			}
			return b.String()
		}
	}
	return b.String() + "does not settle\n"
}

func (w *world) String() string {
	var b strings.Builder
	if w.sv == nil {
		fmt.Fprintln(&b, "no StorageVersion")
	} else {
		fmt.Fprintf(&b, "StorageVersion %s %s common %q\n", w.sv.value.UID, w.sv.value.History, w.sv.value.Common)
	}
	if w.state == nil {
		fmt.Fprintln(&b, "no StorageState")
	} else {
		fmt.Fprintf(&b, "StorageState %s heartbeat %s\n", w.state.value, w.state.value.Heartbeat.Format(time.TimeOnly))
	}
	for _, name := range slices.Sorted(maps.Keys(w.migrations)) {
		m := w.migrations[name].value
		fmt.Fprintf(&b, "migration %s %s for %s\n", name, m.Phase, m.Target)
	}
	if w.crd != nil {
		fmt.Fprintf(&b, "CRD stores %s storedVersions [%s]\n", w.crd.value.Storage, agree.Join(w.crd.value.StoredVersions))
	}
	return b.String()
}
