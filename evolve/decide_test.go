package evolve

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/concord-dev/concord/agree"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// at returns a StorageVersion at this epoch in which one server reports each of the encodings.
func at(epoch int64, encodings ...agree.Encoding) *StorageVersion {
	sv := &StorageVersion{UID: "sv", History: agree.History{Epoch: epoch, Last: map[agree.Encoding]int64{}}}
	for i, e := range encodings {
		sv.Reports = append(sv.Reports, agree.Report{Server: agree.ServerID('a' + rune(i)), Encoding: e})
		sv.History.Last[e] = epoch
	}
	sv.Common, _ = agree.Common(sv.Reports)
	return sv
}

func state(epoch int64, current agree.Encoding, stored ...agree.Encoding) *State {
	return &State{Of: Ref{UID: "sv", Epoch: epoch}, Stored: stored, Current: current, Heartbeat: now}
}

// because returns the state with a reason why servers do not agree.
func because(s *State, why string) *State {
	s.Why = why
	return s
}

// identified returns the state with a uid.
func identified(s *State, uid string) *State {
	s.UID = uid
	return s
}

// custom returns the state as that of a custom resource.
func custom(s *State) *State {
	s.Custom = true
	return s
}

// users returns a migration of a user that was adopted when the state had this uid.
func users(phase Phase, state string) Migration {
	return Migration{Name: "u", Phase: phase, Target: done.Target, State: state, Ended: now.Add(time.Hour)}
}

func forged(s *State) *State {
	s.Forged = true
	return s
}

// silenced returns the StorageVersion with a reason why a server does not report.
func silenced(sv *StorageVersion, why string) *StorageVersion {
	sv.Silent = why
	return sv
}

const differ = "servers report different encodings: batch/v1,batch/v2"

var (
	decided = schema.GroupResource{Group: "batch", Resource: "cronjobs"}
	running = Migration{Name: "m", Made: true, Attempt: 1, Phase: Running, Target: Target{Ref: Ref{"sv", 3}, Encoding: "batch/v1"}}
	done    = Migration{Name: "m", Made: true, Attempt: 1, Phase: Succeeded, Target: Target{Ref: Ref{"sv", 3}, Encoding: "batch/v1"}}
)

// decisions are single decisions, each with the sentence that demands it. Stories of several
// decisions are in testdata.
var decisions = []struct {
	sentence string
	o        Observation
	want     []string
}{
	{
		"no migration is made for a definition that is being deleted",
		Observation{StorageVersion: at(3, "batch/v1"), State: custom(state(3, "batch/v1", "batch/v1beta1", "batch/v1")), CRD: &CRD{Deleted: true}},
		nil,
	},
	{
		"a migration that runs goes on while its definition is being deleted, and a user's is adopted",
		Observation{StorageVersion: at(3, "batch/v1"), State: custom(identified(state(3, "batch/v1", "batch/v1beta1", "batch/v1"), "s")), CRD: &CRD{Deleted: true},
			Migrations: []Migration{running, {Name: "u"}}},
		[]string{"adopt migration u for batch/v1@sv/3"},
	},
	{
		"KEP-2339: starts migration if the storageVersion.status.commonEncodingVersion differs from the storageState.status.persistedStorageVersionHashes",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1")},
		[]string{"create migration cronjobs.batch-sv-3-1 to batch/v1@sv/3, attempt 1"},
	},
	{
		"where migrations are made only if somebody asks for them, one that was made before does not go on",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"), Policy: Policy{Manual: "only if somebody asks"}, Migrations: []Migration{running}},
		[]string{"delete migration m: only if somebody asks"},
	},
	{
		"and one that somebody asked for does",
		Observation{StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", "batch/v1beta1", "batch/v1"), "s"), Policy: Policy{Manual: "only if somebody asks"}, Migrations: []Migration{users(Running, "s")}},
		nil,
	},
	{
		"KEP-2339: (and does not if they are the same)",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1")},
		nil,
	},
	{
		"a StorageState that somebody has edited says nothing: it begins anew, though a migration succeeded",
		Observation{StorageVersion: at(3, "batch/v1"), State: forged(state(3, "batch/v1", "batch/v1")), Migrations: []Migration{done}},
		[]string{"delete state: its hashes are not those of its encodings: it was edited by hand"},
	},
	{
		"KEP-2339: aborts ongoing migration if the storageVersion.status.commonEncodingVersion is empty",
		Observation{StorageVersion: at(4, "batch/v1", "batch/v2"), State: because(state(4, Unknown, "batch/v1", "batch/v2"), differ), Migrations: []Migration{running}},
		[]string{"delete migration m: servers report different encodings: batch/v1,batch/v2"},
	},
	{
		"KEP-2343: If the storageState exists, the controller compares [...] If they are the same, the controller simply updates the status.lastHeartbeatTime and is done.",
		Observation{Now: now.Add(HeartbeatPeriod), StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1")},
		[]string{"heartbeat"},
	},
	{
		"KEP-2343: If a migration completes, the controller [...] updates its status.persistedStorageVersionHashes to equal its status.currentStorageVersionHash.",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"), Migrations: []Migration{done}},
		[]string{"write state sv/3 stored [batch/v1] current batch/v1"},
	},
	{
		"a failure that does not pass by itself is followed by a long pause",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 7, Phase: Failed, Lasting: 1, Target: done.Target, Ended: now.Add(-time.Minute)}}},
		[]string{"wait 9m0s: 7 failures before another migration"},
	},
	{
		"one that failed since the definition changed under it is followed by no long pause",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 7, Phase: Failed, Overtaken: true, Target: done.Target, Ended: now.Add(-time.Second)}}},
		[]string{"wait 1m19s: 7 failures before another migration"},
	},
	{
		"a change of the definition ends the pause, but for the shortest",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 7, Phase: Failed, Mended: true, Target: done.Target, Ended: now.Add(-time.Second)}}},
		[]string{"wait 9s: 7 failures before another migration"},
	},
	{
		"but not that after a failure that does not pass by itself",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 7, Phase: Failed, Mended: true, Lasting: 1, Target: done.Target, Ended: now.Add(-time.Minute)}}},
		[]string{"wait 9m0s: 7 failures before another migration"},
	},
	{
		"and every further one by one twice as long",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 4, Phase: Failed, Lasting: 4, Target: done.Target, Ended: now.Add(-time.Minute)}}},
		[]string{"wait 1h19m0s: 4 failures before another migration"},
	},
	{
		"but not by more than a day",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"),
			Migrations: []Migration{{Name: "m", Made: true, Attempt: 100, Phase: Failed, Lasting: 100, Target: done.Target, Ended: now.Add(-time.Minute)}}},
		[]string{"wait 23h59m0s: 100 failures before another migration"},
	},
	{
		"3.5: Success counts only if the state has the migration's uid and epoch",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(2, Unknown, "batch/v1beta1"), Migrations: []Migration{done}},
		[]string{"write state sv/3 stored [batch/v1beta1,batch/v1] current batch/v1"},
	},
	{
		"3.5: and the StorageVersion still has them",
		Observation{StorageVersion: at(5, "batch/v1"), State: state(5, "batch/v1", "batch/v1beta1", "batch/v1"), Migrations: []Migration{done}},
		[]string{"delete migration m: it was made for batch/v1@sv/3", "create migration cronjobs.batch-sv-5-1 to batch/v1@sv/5, attempt 1"},
	},
	{
		"3.5: the epoch never goes back for one uid",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(4, Unknown, "batch/v1", "batch/v2"), Migrations: []Migration{done}},
		[]string{"wait 10s: the StorageVersion is at epoch 3, older than the state's"},
	},
	{
		"3.5: another uid, or no state: gains Unknown",
		Observation{StorageVersion: at(3, "batch/v1"), State: &State{Of: Ref{"old", 9}, Stored: []agree.Encoding{"batch/v1"}, Current: "batch/v1"}},
		[]string{"write state sv/3 stored [batch/v1,Unknown] current batch/v1"},
	},
	{
		"KEP-2343: if the storageState doesn't exist [...] stops any ongoing migration [...] by deleting; and the state is written only when none is seen any more, whose success would count",
		Observation{StorageVersion: at(3, "batch/v1"), Migrations: []Migration{done}},
		[]string{"delete migration m: the resource has no StorageState"},
	},
	{
		"who deletes a state has everything migrated again, whatever migration of a user's succeeded before",
		Observation{StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", Unknown), "b"), Migrations: []Migration{users(Succeeded, "a")}},
		[]string{"create migration cronjobs.batch-sv-3-1 to batch/v1@sv/3, attempt 1"},
	},
	{
		"and a later one counts",
		Observation{StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", Unknown), "b"), Migrations: []Migration{users(Succeeded, "b")}},
		[]string{"write state sv/3 stored [batch/v1] current batch/v1"},
	},
	{
		"one that runs then is waited for, and does not count either: it may have seen objects before",
		Observation{StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", Unknown), "b"), Migrations: []Migration{users(Running, "a")}},
		nil,
	},
	{
		"one that has not begun then is adopted anew",
		Observation{StorageVersion: at(3, "batch/v1"), State: identified(state(3, "batch/v1", Unknown), "b"), Migrations: []Migration{users(Pending, "a")}},
		[]string{"adopt migration u for batch/v1@sv/3"},
	},
	{
		"one that a user has paused stays, and stays paused, for what is agreed on later",
		Observation{StorageVersion: at(3, "batch/v1"), Migrations: []Migration{done, {Name: "p", Made: true, Paused: true, Phase: Running, Target: running.Target}}},
		[]string{"delete migration m: the resource has no StorageState", "reset migration p, which a user has paused or limited: the resource has no StorageState"},
	},
	{
		"so does one whose agreement is lost",
		Observation{StorageVersion: at(4, "batch/v1", "batch/v2"), State: because(state(4, Unknown, "batch/v1", "batch/v2"), differ),
			Migrations: []Migration{{Name: "m", Made: true, Phase: Running}, {Name: "p", Made: true, Paused: true, Phase: Running}, {Name: "slow", Made: true, Limited: true, Phase: Running}, {Name: "over", Made: true, Limited: true, Phase: Failed}}},
		[]string{"delete migration m: " + differ, "reset migration p, which a user has paused or limited: " + differ, "reset migration slow, which a user has paused or limited: " + differ},
	},
	{
		"and one that was made for another version, and no other is made beside it",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v2"),
			Migrations: []Migration{{Name: "slow", Made: true, Limited: true, Phase: Running, Target: Target{Ref{"sv", 2}, "batch/v2"}}}},
		[]string{"reset migration slow, which a user has paused or limited: it was made for batch/v2@sv/2"},
	},
	{
		"one that failed since its version changed hands its limits on",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v2"),
			Migrations: []Migration{{Name: "slow", Made: true, Limited: true, Phase: Failed, Target: Target{Ref{"sv", 2}, "batch/v2"}}}},
		[]string{"delete migration slow: it was made for batch/v2@sv/2", "create migration cronjobs.batch-sv-3-1 to batch/v1@sv/3, attempt 1, with the limits of slow"},
	},
	{
		"and stays while the servers settle",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v2"), Settling: time.Minute,
			Migrations: []Migration{{Name: "slow", Made: true, Limited: true, Phase: Failed, Target: Target{Ref{"sv", 2}, "batch/v2"}}}},
		[]string{"wait 1m0s: " + settling},
	},
	{
		"one that began anew with its limits hands them on when it fails",
		Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v2"), Now: time.Unix(100, 0),
			Migrations: []Migration{{Name: "slow", Attempt: 7, Limited: true, Phase: Failed, Target: Target{Ref{"sv", 3}, "batch/v1"}, Ended: time.Unix(100, 0).Add(-Backoff(1))}}},
		[]string{"delete migration slow: it failed and is tried again", "create migration cronjobs.batch-sv-3-8 to batch/v1@sv/3, attempt 8, with the limits of slow", "heartbeat"},
	},
	{
		"without its definition one that has ended is deleted, and one that has not begun ends",
		Observation{State: &State{Of: Ref{"sv", 3}, Custom: true, Stored: []agree.Encoding{"batch/v1"}, Heartbeat: now}, Existence: Missing,
			Migrations: []Migration{{Name: "over", Attempt: 7, Limited: true, Phase: Failed}, {Name: "slow", Attempt: 7, Limited: true}, {Name: "user", Phase: Failed}}},
		[]string{"delete migration over: " + Gone, `fail migration slow: ResourceNotFound: no server serves a resource "cronjobs.batch"`, "delete state: its CustomResourceDefinition is gone, and all objects with it"},
	},
	{
		"and stays where there is one, or the resource is built in",
		Observation{State: &State{Of: Ref{"sv", 3}, Stored: []agree.Encoding{Unknown}, Current: Unknown, Why: Gone, Heartbeat: now},
			Migrations: []Migration{{Name: "over", Attempt: 7, Limited: true, Phase: Failed}}},
		nil,
	},
	{
		"agreement needs both the common encoding and the history",
		Observation{StorageVersion: func() *StorageVersion { sv := at(3, "batch/v1", "batch/v2"); sv.Common = "batch/v1"; return sv }(),
			State: because(state(3, Unknown, "batch/v1", "batch/v2"), differ)},
		nil,
	},
	{
		"a state says why nobody agrees",
		Observation{StorageVersion: at(4, "batch/v1", "batch/v2"), State: because(state(4, Unknown, "batch/v1", "batch/v2"), "x does not report")},
		[]string{"write state sv/4 stored [batch/v1,batch/v2] current Unknown"},
	},
	{
		"a user's migration that nobody has begun says what it waits for",
		Observation{StorageVersion: silenced(at(4, "batch/v1", Unknown), "x does not report"), State: because(state(4, Unknown, "batch/v1", Unknown), "x does not report"),
			Migrations: []Migration{{Name: "new"}, {Name: "other", Waiting: "y does not report"}, {Name: "told", Waiting: "x does not report"}, {Name: "over", Phase: Failed}}},
		[]string{"migration new waits: x does not report", "migration other waits: x does not report"},
	},
	{
		"no migration begins while a server that has gone, and did not report, may still write",
		Observation{StorageVersion: lately(4, 3, "batch/v1"), State: state(4, "batch/v1", "batch/v1", Unknown), Settling: time.Minute,
			Migrations: []Migration{{Name: "user"}, {Name: "told", Waiting: settling}, {Name: "made", Made: true, Target: running.Target}}},
		[]string{"delete migration made: it was made for batch/v1@sv/3", "migration user waits: " + settling, "wait 1m0s: " + settling},
	},
	{
		"and one begins then",
		Observation{StorageVersion: lately(4, 3, "batch/v1"), State: state(4, "batch/v1", "batch/v1", Unknown)},
		[]string{"create migration cronjobs.batch-sv-4-1 to batch/v1@sv/4, attempt 1"},
	},
	{
		"a StorageVersion that was only created says nothing",
		Observation{StorageVersion: at(0)},
		nil,
	},
}

func TestDecide(t *testing.T) {
	for _, test := range decisions {
		if test.o.Now.IsZero() {
			test.o.Now = now
		}
		test.o.Resource = decided
		var got []string
		for _, a := range Decide(Believed(test.o)) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s\n got: %s\nwant: %s", test.sentence, strings.Join(got, "; "), strings.Join(test.want, "; "))
		}
	}
}

// TestCounts: objects are counted before a stored set or storedVersions lose an encoding. An
// encoding that is found by the count is added to the stored set and migrated, although a migration
// has succeeded or the StorageState lacks it.
func TestCounts(t *testing.T) {
	target := done.Target
	crd := func(stored ...agree.Encoding) *CRD {
		return &CRD{Name: "c", Storage: "batch/v1", Versions: []agree.Encoding{"batch/v1", "batch/v1beta1"}, StoredVersions: stored}
	}
	found := &Census{Of: target, Found: []agree.Encoding{"batch/v1beta1"}}
	for _, test := range []struct {
		sentence string
		o        Observation
		counts   bool
		want     []string
	}{
		{"a success is not believed without a count",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"), Migrations: []Migration{done}}, true,
			[]string{"create migration cronjobs.batch-sv-3-2 to batch/v1@sv/3, attempt 2"}},
		{"nor one that a count refutes: it failed",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1beta1", "batch/v1"), Migrations: []Migration{done}, Census: found}, false,
			[]string{"fail migration m: NotProven: objects are stored in batch/v1beta1 nevertheless"}},
		{"a StorageState of one encoding is not believed where storedVersions would shrink",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1"), CRD: crd("batch/v1beta1", "batch/v1")}, true, nil},
		{"what is found is in the stored set",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1"), CRD: crd("batch/v1beta1", "batch/v1"), Census: found}, false,
			[]string{"write state sv/3 stored [batch/v1,batch/v1beta1] current batch/v1"}},
		{"nothing found is proof",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1"), CRD: crd("batch/v1beta1", "batch/v1"), Census: &Census{Of: target}}, false,
			[]string{"prune storedVersions of c to batch/v1@sv/3"}},
		{"of that agreement only",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1"), CRD: crd("batch/v1beta1", "batch/v1"), Census: &Census{Of: Target{Ref: Ref{"sv", 1}, Encoding: "batch/v1"}}}, true, nil},
		{"where nothing shrinks nothing is counted",
			Observation{StorageVersion: at(3, "batch/v1"), State: state(3, "batch/v1", "batch/v1"), CRD: crd("batch/v1"), Migrations: []Migration{done}}, false, nil},
	} {
		test.o.Now, test.o.Resource, test.o.State.Custom = now, decided, test.o.CRD != nil
		if of, counts := Counts(test.o); counts != test.counts || counts && of != target {
			t.Errorf("%s: counts %v, for %s", test.sentence, counts, of)
		}
		var got []string
		for _, a := range Decide(test.o) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s\n got: %s\nwant: %s", test.sentence, strings.Join(got, "; "), strings.Join(test.want, "; "))
		}
	}
}

func TestDecideKeepsItsInput(t *testing.T) {
	migrations := []Migration{{Name: "b"}, {Name: "a"}}
	stored := make([]agree.Encoding, 1, 8)
	stored[0] = "batch/v1"
	Decide(Observation{Now: now, StorageVersion: at(3, "batch/v1", "batch/v2"), State: state(2, "batch/v1", stored...), Migrations: migrations})
	if migrations[0].Name != "b" || stored[:2][1] != "" {
		t.Errorf("changed: %v, %v", migrations, stored[:2])
	}
}

func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 4: 80 * time.Second, 7: 10 * time.Minute, 1000: 10 * time.Minute} {
		if got := Backoff(failures); got != want {
			t.Errorf("Backoff(%d) = %s, want %s", failures, got, want)
		}
	}
}

// TestRecreate: "if the timestamp is more than 10 minutes old, it recreates storageState
// object with persistedStorageVersionHashes set to ["Unknown"]" (KEP-2343).
func TestRecreate(t *testing.T) {
	for age, want := range map[time.Duration]bool{9 * time.Minute: false, 10 * time.Minute: false, 10*time.Minute + time.Second: true, -time.Hour: false} {
		if got := Recreate(now.Add(-age), now); got != want {
			t.Errorf("a heartbeat of %s ago: recreate %t, want %t", age, got, want)
		}
	}
	if !Recreate(time.Time{}, now) {
		t.Error("a state without a heartbeat is kept")
	}
}

// TestRemaining: a difference between two clocks makes a wait shorter or longer by one period at
// most.
func TestRemaining(t *testing.T) {
	for ago, want := range map[time.Duration]time.Duration{
		0: time.Minute, 20 * time.Second: 40 * time.Second, time.Minute: 0, time.Hour: 0,
		-30 * time.Second: 90 * time.Second, -time.Hour: 0,
	} {
		if got := remaining(now.Add(-ago), time.Minute, now); got != want {
			t.Errorf("begun %s ago: %s left, want %s", ago, got, want)
		}
	}
	if got := remaining(time.Time{}, time.Minute, now); got != 0 {
		t.Errorf("begun never: %s left", got)
	}
}

func TestMigrationName(t *testing.T) {
	target := Target{Ref: Ref{UID: "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", Epoch: 7}, Encoding: "v1"}
	if got, want := MigrationName(schema.GroupResource{Resource: "configmaps"}, target, 2), "configmaps-1b9d6bcd-7-2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	seen := map[string]bool{}
	for _, group := range []string{strings.Repeat("a.", 100) + "example.com", strings.Repeat("a.", 100) + "example.org"} {
		for attempt := 1; attempt <= 2; attempt++ {
			name := MigrationName(schema.GroupResource{Group: group, Resource: strings.Repeat("r", 60)}, target, attempt)
			if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
				t.Errorf("%s: %v", name, problems)
			}
			seen[name] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d names for 4 migrations", len(seen))
	}
}

func TestServedVersion(t *testing.T) {
	gr := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	for _, test := range []struct {
		encoding agree.Encoding
		served   []string
		want     string
	}{
		{"events.k8s.io/v1", []string{"events.k8s.io/v1beta1", "events.k8s.io/v1"}, "v1"},
		{"v1", []string{"events.k8s.io/v1beta1", "v1"}, "v1beta1"},
		{"events.k8s.io/v1beta1", []string{"events.k8s.io/v1"}, "v1"},
		{"events.k8s.io/v1", nil, "v1"},
	} {
		if got := servedVersion(gr, test.encoding, []agree.Report{{Served: test.served}}); got != test.want {
			t.Errorf("stored in %s, served in %v: %s, want %s", test.encoding, test.served, got, test.want)
		}
	}
}

// lately returns a StorageVersion in which all servers agree, and Unknown was reported until an
// earlier epoch.
func lately(epoch, until int64, e agree.Encoding) *StorageVersion {
	sv := at(epoch, e)
	sv.History.Last[Unknown] = until
	return sv
}

// TestSilenced: a time in which a server did not report, and which is over, is named by the
// StorageVersion's uid and the last epoch of that time, so that a later one has another name.
func TestSilenced(t *testing.T) {
	unknown := state(4, "batch/v1", "batch/v1", Unknown)
	forgotten := at(4, "batch/v1")
	forgotten.History.Forgotten = 2
	for _, test := range []struct {
		why  string
		o    Observation
		want Ref
	}{
		{"it is over", Observation{State: unknown, StorageVersion: lately(4, 3, "batch/v1")}, Ref{"sv", 3}},
		{"a later one is over", Observation{State: unknown, StorageVersion: lately(6, 5, "batch/v1")}, Ref{"sv", 5}},
		{"nobody remembers", Observation{State: unknown, StorageVersion: forgotten}, Ref{"sv", 2}},
		{"it lasts", Observation{State: unknown, StorageVersion: at(4, "batch/v1", Unknown)}, Ref{}},
		{"there was none, as in a new cluster", Observation{State: unknown, StorageVersion: at(4, "batch/v1")}, Ref{}},
		{"everything was migrated since", Observation{State: state(4, "batch/v1", "batch/v1"), StorageVersion: lately(4, 3, "batch/v1")}, Ref{}},
		{"there is no state", Observation{StorageVersion: lately(4, 3, "batch/v1")}, Ref{}},
	} {
		if got, over := Silenced(test.o); got != test.want || over != (test.want != Ref{}) {
			t.Errorf("%s: %v, %t; want %v", test.why, got, over, test.want)
		}
	}
}
