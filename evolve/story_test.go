package evolve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// TestStories runs the stories in testdata. Commands:
//
//	report a=batch/v1 b=batch/v1  servers report; no server: all are gone
//	collect                       the StorageVersion without reports is deleted
//	look                          the trigger looks until there is nothing more to do
//	advance 1m                    time passes
//	migrate NAME                  a user creates a migration
//	claim|succeed|fail NAME       a migration goes on
//	delete state|NAME             an administrator deletes an object
//	crd stores=V [stored=V] [without=V]  the CRD says so; "crd gone" deletes it
//	starting a=15s                a server registered just now, with that Lease; "starting" alone: none
//	discovery served|missing|silent
//	print
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := w.run(d)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

func (w *world) run(d *datadriven.TestData) (string, error) {
	first := ""
	if len(d.CmdArgs) > 0 {
		first = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "report":
		var reports []agree.Report
		for _, arg := range d.CmdArgs {
			reports = append(reports, agree.Report{Server: agree.ServerID(arg.Key), Encoding: agree.Encoding(arg.Vals[0]),
				Decodable: arg.Vals, Served: arg.Vals[:1]})
		}
		w.report(reports)
	case "collect":
		w.sv = nil
	case "look":
		return w.settle(), nil
	case "advance":
		by, err := time.ParseDuration(first)
		w.now = w.now.Add(by)
		return "", err
	case "migrate":
		w.migrations[first] = &object[Migration]{value: Migration{Name: first, Created: w.now}, rev: w.next()}
	case "claim", "succeed", "fail":
		return "", w.goOn(d.Cmd, first)
	case "delete":
		if first == "state" {
			w.state = nil
		} else {
			delete(w.migrations, first)
		}
	case "crd":
		return "", w.define(d)
	case "starting":
		w.starting = nil
		for _, arg := range d.CmdArgs {
			lease, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				return "", err
			}
			w.starting = append(w.starting, Starting{Server: agree.ServerID(arg.Key), Since: w.now, Lease: lease})
		}
	case "discovery":
		w.existence = map[string]Existence{"served": Served, "missing": Missing, "silent": NotLooked}[first]
	case "print":
		return w.String(), nil
	default:
		return "", fmt.Errorf("unknown command %s", d.Cmd)
	}
	return "", nil
}

func (w *world) goOn(command, name string) error {
	m := w.migrations[name]
	if m == nil {
		return fmt.Errorf("no migration %s", name)
	}
	return w.change(name, m.rev, func(m *Migration) {
		m.Phase = map[string]Phase{"claim": Running, "succeed": Succeeded, "fail": Failed}[command]
		if m.Phase.Final() {
			m.Ended = w.now
		}
	})
}

func (w *world) define(d *datadriven.TestData) error {
	crd := CRD{Name: "cronjobs.batch"}
	if w.crd != nil {
		crd = w.crd.value
	}
	w.crd = nil
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "stores":
			crd.Storage = agree.Encoding(arg.Vals[0])
			crd.StoredVersions = add(crd.StoredVersions, crd.Storage)
			crd.Versions = add(crd.Versions, crd.Storage)
		case "without":
			crd.Versions = slices.DeleteFunc(slices.Clone(crd.Versions), func(v agree.Encoding) bool { return string(v) == arg.Vals[0] })
		case "stored":
			crd.StoredVersions = nil
			for _, v := range strings.Split(arg.Vals[0], ",") {
				crd.StoredVersions = append(crd.StoredVersions, agree.Encoding(v))
			}
		case "gone":
			return nil
		default:
			return fmt.Errorf("unknown argument %s", arg.Key)
		}
	}
	w.crd = &object[CRD]{value: crd, rev: w.next()}
	return nil
}

func TestStoredSet(t *testing.T) {
	history := func(epoch int64, last map[agree.Encoding]int64) *StorageVersion {
		return &StorageVersion{UID: "u", History: agree.History{Epoch: epoch, Last: last}}
	}
	state := func(uid string, epoch int64, stored ...agree.Encoding) *State {
		return &State{Of: Ref{UID: uid, Epoch: epoch}, Stored: stored}
	}
	v1 := history(1, map[agree.Encoding]int64{"g/v1": 1})
	forgetful := history(3, map[agree.Encoding]int64{"g/v3": 3})
	forgetful.History.Forgotten = 2
	for name, test := range map[string]struct {
		state *State
		sv    *StorageVersion
		want  string
	}{
		"nothing is known":                {nil, nil, "Unknown"},
		"no state":                        {nil, v1, "Unknown,g/v1"},
		"no StorageVersion":               {state("u", 1, "g/v1"), nil, "g/v1,Unknown"},
		"at the same epoch":               {state("u", 1, "g/v1"), v1, "g/v1"},
		"behind by a moment":              {state("u", 1, "g/v1"), history(3, map[agree.Encoding]int64{"g/v1": 3, "g/v2": 2}), "g/v1,g/v2"},
		"behind by what is forgotten":     {state("u", 1, "g/v1"), forgetful, "g/v1,Unknown,g/v3"},
		"not behind what is forgotten":    {state("u", 2, "g/v1"), forgetful, "g/v1,g/v3"},
		"all servers have left":           {state("u", 1, "g/v1"), history(2, map[agree.Encoding]int64{"g/v1": 1}), "g/v1"},
		"another StorageVersion":          {state("other", 1, "g/v2"), v1, "g/v2,Unknown,g/v1"},
		"the epoch went back":             {state("u", 9, "g/v2"), v1, "g/v2,Unknown,g/v1"},
		"a state that was never computed": {state("", 0), v1, "Unknown,g/v1"},
		"a state without a set":           {state("u", 1), v1, "Unknown,g/v1"},
		"Unknown stays":                   {state("u", 1, Unknown, "g/v1"), v1, "Unknown,g/v1"},
	} {
		if got := agree.Join(StoredSet(test.state, test.sv)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// TestRemovable: after random reports, migrations and steps of the trigger, a key is called
// removable only if no object may be stored with it. The test itself keeps all encodings that may
// be stored.
func TestRemovable(t *testing.T) {
	encodings := []agree.Encoding{"v1", "v2"}
	seals := []agree.Seal{"", "p:v1:a:1", "p:v1:b:2", "p:v1:c:3"}
	removed := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		any := func() agree.Encoding { return encodings[r.IntN(2)].Sealed(seals[r.IntN(len(seals))]) }
		sv := &StorageVersion{UID: "u"}
		report := func() {
			sv.Reports = []agree.Report{{Server: "s1", Encoding: any()}, {Server: "s2", Encoding: any()}}
			if r.IntN(2) == 0 {
				sv.Reports[1].Encoding = sv.Reports[0].Encoding
			}
			sv.History = sv.History.Next(sv.Reports)
			sv.Common, _ = agree.Common(sv.Reports)
		}
		report()
		may := map[agree.Encoding]bool{} // all encodings in which objects may be stored
		for _, e := range agree.Encodings(sv.Reports) {
			may[e] = true
		}
		state := &State{Of: sv.Ref(), Stored: agree.Encodings(sv.Reports)}
		for range 40 {
			var done []Migration
			if r.IntN(3) == 0 {
				report()
			} else if target, agreed := sv.Agreement(); agreed && r.IntN(2) == 0 && state.Of == sv.Ref() {
				clear(may)
				done = []Migration{{Phase: Succeeded, Target: target}}
			}
			for _, e := range agree.Encodings(sv.Reports) {
				may[e] = true
			}
			if r.IntN(3) == 0 && done == nil {
				continue // the trigger is slow
			}
			next := nextState(Believed(Observation{State: state, StorageVersion: sv, Migrations: done}))
			state = &next
			for e := range may {
				if slices.Contains(state.Removable, KeyOf(e)) {
					t.Fatalf("seed %d: %s is removable and %s may be stored: %s", seed, KeyOf(e), e, state)
				}
			}
			removed += len(state.Removable)
		}
	}
	if removed == 0 {
		t.Error("no key was ever removable")
	}
}

// TestRemovableUnknown: no key is removable while the stored set has Unknown, and keys are not
// mentioned if none was ever used.
func TestRemovableUnknown(t *testing.T) {
	h := agree.History{}.Next([]agree.Report{{Server: "s", Encoding: "v1+p:v1:a:1"}}).Next([]agree.Report{{Server: "s", Encoding: "v1+p:v1:b:2"}})
	if got := removable(h, []agree.Encoding{Unknown, "v1+p:v1:b:2"}); len(got) > 0 {
		t.Errorf("with Unknown stored: %v", got)
	}
	if got := removable(h, []agree.Encoding{"v1+p:v1:b:2"}); !slices.Equal(got, []string{"p:v1:a:1"}) {
		t.Errorf("got %v", got)
	}
	plain := agree.History{}.Next([]agree.Report{{Server: "s", Encoding: "v1"}}).Next([]agree.Report{{Server: "s", Encoding: "v2"}})
	if got := removable(plain, []agree.Encoding{"v2"}); len(got) > 0 {
		t.Errorf("without any key: %v", got)
	}
}

func widgets(i int) schema.GroupResource {
	return schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("widgets", i)}
}

// TestHeartbeatsAreSpread: the heartbeats of a thousand resources that were written at the same
// time are spread over the period. Each has one in a period, well within the ten minutes of
// KEP-2343.
func TestHeartbeatsAreSpread(t *testing.T) {
	const resources, periods = 1000, 12
	last := make([]time.Time, resources)
	for i := range last {
		last[i] = now
	}
	beats := make([]int, resources)
	most := 0
	end := periods * HeartbeatPeriod
	for at := time.Second; at <= end; at += time.Second {
		clock, together := now.Add(at+300*time.Millisecond), 0
		for i := range last {
			if !Due(widgets(i), last[i], clock) {
				continue
			}
			if beats[i] > 0 && clock.Sub(last[i]) > HeartbeatPeriod+2*time.Second {
				t.Fatalf("%s is %s old", widgets(i), clock.Sub(last[i]))
			}
			last[i] = clock.Truncate(time.Second) // the API keeps whole seconds
			beats[i]++
			together++
		}
		most = max(most, together)
	}
	for i, n := range beats {
		if n != periods {
			t.Errorf("%s: %d heartbeats in %d periods", widgets(i), n, periods)
		}
	}
	if fair := resources * int(time.Second) / int(HeartbeatPeriod); most > 6*fair {
		t.Errorf("up to %d heartbeats in a second, %d would be fair", most, fair)
	}
	if 2*HeartbeatPeriod > DiscoveryPeriod {
		t.Errorf("a heartbeat every %s: a late one looks like none for %s", HeartbeatPeriod, DiscoveryPeriod)
	}
}

func TestUntilBeat(t *testing.T) {
	for i := range 500 {
		at := now.Add(time.Duration(i) * 1234 * time.Millisecond)
		until := UntilBeat(widgets(i), at)
		if until <= 0 || until > HeartbeatPeriod {
			t.Fatalf("%s until the next heartbeat of %s", until, widgets(i))
		}
		if Due(widgets(i), at, at.Add(until-1)) || !Due(widgets(i), at, at.Add(until)) {
			t.Errorf("%s is not due after %s", widgets(i), until)
		}
	}
	for heartbeat, want := range map[time.Time]bool{{}: true, now.Add(time.Hour): true, now.Add(10 * time.Second): false} {
		if got := Due(widgets(0), heartbeat, now); got != want {
			t.Errorf("a heartbeat of %s at %s: due %t", heartbeat, now, got)
		}
	}
}
