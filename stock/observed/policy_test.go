package observed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// observation returns an observation of a resource for which everything was proven at the start.
func observation() evolve.Observation {
	of := evolve.Ref{UID: Begun{At: start, Release: "1.37"}.UID(), Epoch: 2}
	return evolve.Observation{
		Resource: widgets, Now: start.Add(4 * time.Minute),
		State: &evolve.State{Of: of, Stored: []agree.Encoding{"example.com/v2"}, Current: "example.com/v2", Custom: true},
		StorageVersion: &evolve.StorageVersion{UID: of.UID, Common: "example.com/v2",
			History: agree.History{Epoch: 2, Last: map[agree.Encoding]int64{"example.com/v1": 1, "example.com/v2": 2}}},
		Migrations: []evolve.Migration{{Name: "m", Phase: evolve.Succeeded, Ended: start, Target: evolve.Target{Ref: of, Encoding: "example.com/v2"}}},
		CRD:        &evolve.CRD{Name: "widgets.example.com", Storage: "example.com/v2", StoredVersions: []agree.Encoding{"example.com/v1", "example.com/v2"}},
	}
}

func TestPrune(t *testing.T) {
	ten := Settings{PruneAfter: 10 * time.Minute}
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		settings    Settings
		keep        string
		in          time.Duration
	}{
		{"by default after ten minutes", nil, ten, "", 6 * time.Minute},
		{"at once", nil, Settings{}, "", 0},
		{"never", nil, Settings{PruneAfter: Never}, "--prune-after (an operator: Options.PruneAfter) is never", 0},
		{"the annotation says now", map[string]string{PruneAnnotation: "now"}, ten, "", 0},
		{"now, although the flag says never", map[string]string{PruneAnnotation: "now"}, Settings{PruneAfter: Never}, "", 0},
		{"the annotation says never", map[string]string{PruneAnnotation: "never"}, ten, PruneAnnotation + " is never", 0},
		{"the annotation says how long", map[string]string{PruneAnnotation: "5m"}, ten, "", time.Minute},
		{"which is over", map[string]string{PruneAnnotation: "1m"}, ten, "", 0},
		{"the annotation says nothing that is understood", map[string]string{PruneAnnotation: "soon"}, ten, `is "soon"`, 0},
		{"nor by a negative duration", map[string]string{PruneAnnotation: "-1s"}, ten, "negative", 0},
		{"not by best effort", nil, Settings{BestEffort: true}, "cannot be asked one by one", 0},
		{"unless told", map[string]string{PruneAnnotation: "now"}, Settings{BestEffort: true, PruneAfter: time.Hour}, "", 0},
		{"it is held", map[string]string{migrationv1alpha1.HoldAnnotation: "true", PruneAnnotation: "now"}, ten, migrationv1alpha1.HoldAnnotation, 0},
		{"it is held no more", map[string]string{migrationv1alpha1.HoldAnnotation: "false"}, Settings{}, "", 0},
	} {
		p := Policy(observation(), tc.annotations, tc.settings, start.Add(3*time.Minute), true)
		if (p.KeepStored == "") != (tc.keep == "") || !strings.Contains(p.KeepStored, tc.keep) || p.PruneIn != tc.in {
			t.Errorf("%s: keeps %q, in %v; want %q, %v", tc.name, p.KeepStored, p.PruneIn, tc.keep, tc.in)
		}
	}
	// If no migration tells when the proof was, the time counts from when the agreement was first
	// seen.
	o := observation()
	o.Migrations = nil
	if p := Policy(o, nil, ten, start.Add(3*time.Minute), true); p.PruneIn != 9*time.Minute {
		t.Errorf("without a migration: in %v", p.PruneIn)
	}
}

// TestPruneDecided: the actions that Decide returns for a Policy.
func TestPruneDecided(t *testing.T) {
	pruned := func(o evolve.Observation) (prune, wait bool) {
		for _, a := range evolve.Decide(evolve.Believed(o)) {
			switch a.(type) {
			case evolve.Prune:
				prune = true
			case evolve.Wait:
				wait = true
			}
		}
		return prune, wait
	}
	o := observation()
	o.State.Heartbeat = o.Now
	for _, tc := range []struct {
		policy      evolve.Policy
		prune, wait bool
	}{
		{evolve.Policy{}, true, false},
		{evolve.Policy{PruneIn: time.Minute}, false, true},
		{evolve.Policy{KeepStored: "it is held"}, false, false},
	} {
		o.Policy = tc.policy
		if prune, wait := pruned(o); prune != tc.prune || wait != tc.wait {
			t.Errorf("%+v: prunes %v, waits %v", tc.policy, prune, wait)
		}
	}
}

// TestTakeOver: a pending migration of kube-storage-version-migrator is done, and one that it had
// begun is ended.
func TestTakeOver(t *testing.T) {
	o := observation()
	o.State.Heartbeat = o.Now
	o.Migrations = append(o.Migrations, evolve.Migration{Name: "begun", Phase: evolve.Running}, evolve.Migration{Name: "pending"})
	o.Policy = Policy(o, nil, Settings{}, start, true)
	var ended, adopted string
	for _, a := range evolve.Decide(o) {
		switch a := a.(type) {
		case evolve.EndMigration:
			ended += a.Name + " " + string(a.Reason)
		case evolve.AdoptMigration:
			adopted += a.Name
		}
	}
	if ended != "begun BegunElsewhere" || adopted != "pending" {
		t.Errorf("ended is %q, adopted %q", ended, adopted)
	}
}

func TestManual(t *testing.T) {
	same := Begun{At: start, Release: "1.37", Same: true}.UID()
	built := func(uid string, stored ...agree.Encoding) evolve.Observation {
		return evolve.Observation{Resource: cronjobs, State: &evolve.State{Stored: stored},
			StorageVersion: &evolve.StorageVersion{UID: uid, Common: "batch/v1"}}
	}
	event := built("")
	event.Resource = events
	for _, tc := range []struct {
		name     string
		o        evolve.Observation
		settings Settings
		manual   string
	}{
		{"one that changed", built(Begun{At: start, Release: "1.37"}.UID(), agree.Unknown), Settings{BuiltIn: true}, ""},
		{"one that cannot have changed", built(same, "batch/v1", agree.Unknown), Settings{BuiltIn: true}, "still of release 1.37"},
		{"and then did", built(same, "batch/v1", agree.Unknown, "batch/v1beta1"), Settings{BuiltIn: true}, ""},
		{"without built-in ones", built("", agree.Unknown), Settings{}, "when somebody asks"},
		{"events", event, Settings{BuiltIn: true}, "events"},
		{"custom ones, without built-in ones", observation(), Settings{}, ""},
	} {
		if got := Policy(tc.o, nil, tc.settings, start, true).Manual; (got == "") != (tc.manual == "") || !strings.Contains(got, tc.manual) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.manual)
		}
	}
}

// TestInitial: a custom resource that is seen for the first time may be stored in the versions in
// its storedVersions and in no others. After its StorageState was deleted, it may be stored in any
// version (Unknown).
func TestInitial(t *testing.T) {
	o := observation()
	o.State, o.Migrations = nil, nil
	for met, want := range map[bool][]agree.Encoding{
		false: {"example.com/v1", "example.com/v2"},
		true:  {evolve.Unknown},
	} {
		o.Policy = Policy(o, nil, Settings{}, start, met)
		var got []agree.Encoding
		for _, a := range evolve.Decide(evolve.Believed(o)) {
			if write, ok := a.(evolve.WriteState); ok {
				got = write.State.Stored
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("met before %v: the stored set begins as %v, want %v", met, got, want)
		}
	}
}

func TestProof(t *testing.T) {
	name := func(n string) types.NamespacedName { return types.NamespacedName{Namespace: "default", Name: n} }
	examined := func(n string, again []Twice, outcomes ...Outcome) Examined {
		e := Examined{NamespacedName: name(n), Again: again}
		for i, o := range outcomes {
			e.Probes = append(e.Probes, Probe{Replica: agree.ServerID([]string{"a", "b"}[i]), Outcome: o, Detail: "no"})
		}
		return e
	}
	for _, tc := range []struct {
		name     string
		examined []Examined
		holds    bool
		says     string
	}{
		{"no objects", nil, true, "0 objects"},
		{"nothing moved", []Examined{examined("x", nil, Same, Same), examined("y", nil, Same, Gone)}, true, "no empty patch of 2 objects"},
		{"one was left over", []Examined{examined("x", []Twice{{"a", Same, false}, {"b", Same, false}}, Moved), examined("y", nil, Same, Same)}, false,
			"1 of 2 objects: default/x (a wrote it anew: it was still stored in another way)"},
		{"two disagree", []Examined{examined("x", []Twice{{"a", Moved, false}, {"b", Moved, false}}, Same, Moved)}, false, "b wrote it anew: kube-apiservers write it differently"},
		{"admission", []Examined{examined("x", []Twice{{"a", Moved, true}}, Moved)}, false, "admission changes it"},
		{"one is refused", []Examined{examined("x", nil, Refused)}, false, "a refuses it: no"},
		{"one without a namespace is", []Examined{{NamespacedName: types.NamespacedName{Name: "x"}, Probes: []Probe{{Replica: "a", Outcome: Refused, Detail: "no"}}}}, false,
			"empty patches of 1 of 1 objects were refused: x (a refuses it: no)"},
	} {
		var p Proof
		for _, e := range tc.examined {
			p.Add(e)
		}
		if p.Holds() != tc.holds || !strings.Contains(p.String(), tc.says) || (p.Unsteady > 0) != (tc.name == "admission") {
			t.Errorf("%s: %v, %s; want %v, %s", tc.name, p.Holds(), p, tc.holds, tc.says)
		}
	}
}

// TestProofIsSmall: a proof with many failures keeps their number and the names of the first, in
// whatever order they come.
func TestProofIsSmall(t *testing.T) {
	var p Proof
	for i := range 10_000 {
		name := fmt.Sprintf("o%04d", i*7919%10_000)
		p.Add(Examined{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, Probes: []Probe{{Replica: "a", Outcome: []Outcome{Moved, Same}[i%2]}}})
	}
	if p.Checked != 10_000 || p.Failed != 5_000 || len(p.Named) != maxTold || cap(p.Named) > 2*maxTold+2 {
		t.Errorf("of %d objects %d failed, %d are kept", p.Checked, p.Failed, cap(p.Named))
	}
	if want := "empty patches changed 5000 of 10000 objects: default/o0000 (a wrote it anew: "; !strings.HasPrefix(p.String(), want) || !strings.HasSuffix(p.String(), "; and 4995 more") {
		t.Errorf("it says %q", p)
	}
}
