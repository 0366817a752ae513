package demo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

var configmaps = schema.GroupResource{Resource: "configmaps"}

// settledWorld is a cluster of three servers whose storage is as it must be.
func settledWorld() *world {
	w := newWorld()
	for i, id := range []agree.ServerID{"id1", "id2", "id3"} {
		w.Servers[id], w.ids[fmt.Sprintf("server-%d", i+1)] = &ledger.Server{}, id
	}
	encodings := maps.Clone(workload.Expected)
	encodings[configmaps] = "v1"
	for gr, encoding := range encodings {
		r := w.Of(gr)
		r.Version = &ledger.Version{Ref: evolve.Ref{UID: "u", Epoch: 3}, Common: encoding}
		r.State = &migrationv1alpha1.StorageState{Status: migrationv1alpha1.StorageStateStatus{
			StorageVersionUID: "u", Epoch: 3, PersistedEncodings: []string{string(encoding)}, PersistedStorageVersionHashes: []string{"hash of " + string(encoding)},
		}}
		for _, id := range w.ids {
			r.Version.Reports = append(r.Version.Reports, agree.Report{Server: id, Encoding: encoding})
		}
	}
	w.Of(workload.Gadgets).CRD = workload.Definition("v2")
	w.Of(workload.Gadgets).CRD.Status.StoredVersions = []string{"v2"}
	return w
}

// passing are facts without a fault.
func passing() facts {
	f := facts{
		Objects: 8,
		Census: migratestore.Census{Rows: []migratestore.Row{
			{Resource: "configmaps", Encoding: "v1", Objects: 1},
			{Resource: workload.Gadgets.String(), Encoding: "demo.concord.dev/v2", Objects: 9},
			{Resource: workload.Policies.String(), Encoding: "admissionregistration.k8s.io/v1", Objects: 2},
			{Resource: workload.Bindings.String(), Encoding: "admissionregistration.k8s.io/v1", Objects: 3},
			{Resource: migratestore.ResourceOther, Encoding: migratestore.EncodingNone, Objects: 1},
		}},
		World:        settledWorld(),
		Hashes:       map[schema.GroupResource]string{configmaps: "hash of v1"},
		Servers:      []string{"server-1", "server-2", "server-3"},
		Acknowledged: 20,
		Failures: []load.Failure{
			{Server: "server-2", Outcome: load.Broken, Started: at(11), At: at(12), Err: errors.New("server-2: connection reset")},
			{Server: "server-1", Outcome: load.Unavailable, Started: at(5), At: at(5)},
			{Server: "server-1", Outcome: load.Unconnected, Started: at(3), At: at(3)},
		},
		Faults:    []fault{{server: "server-1", kind: rolled, from: at(1), to: at(4)}, {server: "server-2", kind: killed, from: at(10), to: at(20)}},
		Stalls:    map[string]time.Duration{"roll": 200 * time.Millisecond, "pause": 5 * time.Second},
		Steps:     []string{"load", "roll", "pause"},
		Burial:    &burial{server: "server-3", declared: 100, rejoined: map[schema.GroupResource]int64{workload.Gadgets: 200, workload.Policies: 205}, held: 4},
		AfterKill: 15 * time.Second, AfterResume: time.Second,
	}
	f.World.journal = []written{
		{revision: 99, key: load.Key{Resource: workload.Gadgets, Name: "writer-a"}, mark: load.Mark{Via: "server-3"}},
		{revision: 150, key: load.Key{Resource: workload.Gadgets, Name: "writer-a"}, mark: load.Mark{Via: "server-1"}},
		{revision: 201, key: load.Key{Resource: workload.Gadgets, Name: "writer-a"}, mark: load.Mark{Via: "server-3"}},
	}
	f.World.bursts = []burst{
		{resource: workload.Gadgets, objects: 300, first: at(0), last: at(2)},
		{resource: workload.Policies, objects: 100, first: at(9), last: at(11)},
	}
	return f
}

func TestJudgePasses(t *testing.T) {
	r := judge(passing())
	if !r.Pass || len(r.Reasons) > 0 || r.Err() != nil {
		t.Fatalf("not a pass: %q", r.Reasons)
	}
	if r.RewriteObjectsPerSecond != 100 || r.RewrittenObjects != 400 {
		t.Errorf("rewritten %d at %v, want 400 at 100", r.RewrittenObjects, r.RewriteObjectsPerSecond)
	}
	if r.LongestWriteStallSeconds != 5 || len(r.LongestWriteStallByStep) != 2 {
		t.Errorf("stalls %v, longest %v", r.LongestWriteStallByStep, r.LongestWriteStallSeconds)
	}
	if r.Unconnected != 1 || r.WriteErrors != 2 || len(r.WriteErrorsByKind) != 2 || r.WriteErrorsByKind["broken connection to the killed server"] != 1 {
		t.Errorf("write errors %d %v", r.WriteErrors, r.WriteErrorsByKind)
	}
	if r.AgreementAfterKillSeconds != 15 || r.AcknowledgedWrites != 20 || r.WritesHeldByPause != 4 {
		t.Errorf("figures: %+v", r)
	}
	if !slices.Equal(r.StoredVersions[workload.CRDName], []string{"v2"}) || len(r.Census) != 5 || len(r.Storage) != 4 {
		t.Errorf("storage: %+v", r)
	}
}

func TestJudgeFails(t *testing.T) {
	change := func(gr schema.GroupResource, edit func(*ledger.Resource)) func(*facts) {
		return func(f *facts) { edit(f.World.Of(gr)) }
	}
	for _, tt := range []struct {
		name string
		edit func(*facts)
		want string
	}{
		{"a step did not end", func(f *facts) { f.Incomplete = []string{"roll: not within 1m30s"} }, "roll: not within 1m30s"},
		{"two reasons", func(f *facts) { f.Incomplete = []string{"one", "two"} }, "two"},
		{"a write is lost", func(f *facts) { f.Lost = []string{"gadgets/a: gone"} }, "1 objects lack an acknowledged write: gadgets/a: gone"},
		{"a refused write was made", func(f *facts) { f.Foreign = []string{"gadgets/a: shows write 2"} }, "1 objects show a write that must not exist"},
		{"an error of a healthy server", func(f *facts) { f.Failures[0].Server = "server-1" }, "1 writes failed that must not: server-2: connection reset"},
		{"an unreadable value", func(f *facts) { f.Census.Unknown = []string{"/registry/a"} }, "1 stored values cannot be read: /registry/a"},
		{"an object in the old encoding", func(f *facts) {
			f.Census.Rows = append(f.Census.Rows, migratestore.Row{Resource: workload.Gadgets.String(), Encoding: "demo.concord.dev/v1", Objects: 2})
		}, "gadgets.demo.concord.dev: 2 objects are stored in demo.concord.dev/v1, not in demo.concord.dev/v2"},
		{"another resource in another encoding", func(f *facts) { f.Census.Rows[0].Encoding = "v0" }, "configmaps: 1 objects are stored in v0, not in v1"},
		{"a resource that nobody reports", func(f *facts) {
			f.Census.Rows = append(f.Census.Rows, migratestore.Row{Resource: "ghosts", Encoding: "v1", Objects: 2})
		}, "ghosts: 2 objects are stored in v1, and no servers agree"},
		{"objects are missing", func(f *facts) { f.Census.Rows[3].Objects = 2 }, "2 objects are stored, 3 were loaded"},
		{"no agreement", change(configmaps, func(r *ledger.Resource) { r.Version.Common = "" }), "configmaps: servers report"},
		{"agreement on the wrong encoding", func(f *facts) {
			change(workload.Gadgets, func(r *ledger.Resource) { r.Version.Common = "demo.concord.dev/v1" })(f)
		}, "agreed on demo.concord.dev/v1, not on demo.concord.dev/v2"},
		{"a stored set with more", change(configmaps, func(r *ledger.Resource) { r.State.Status.PersistedEncodings = []string{"v0", "v1"} }), "configmaps: stored set [v0,v1]"},
		{"a stored set of another epoch", change(configmaps, func(r *ledger.Resource) { r.Version.Epoch++ }), "configmaps: stored set [v1] for u/3, agreed on v1 at u/4"},
		{"no stored set", change(configmaps, func(r *ledger.Resource) { r.State = nil }), "configmaps: it has no StorageState"},
		{"a wrong hash", func(f *facts) { f.Hashes[configmaps] = "other" }, "the stored set is [hash of v1], discovery says other"},
		{"a report of a dead server", change(configmaps, func(r *ledger.Resource) {
			r.Version.Reports = append(r.Version.Reports, agree.Report{Server: "gone", Encoding: "v1"})
		}), "reported by gone"},
		{"a report is missing", change(configmaps, func(r *ledger.Resource) { r.Version.Reports = r.Reports()[:2] }), "configmaps: 2 of 3 reports"},
		{"storedVersions with more", func(f *facts) {
			f.World.Of(workload.Gadgets).CRD.Status.StoredVersions = []string{"v1", "v2"}
		}, "storedVersions [v1 v2], stored in v2"},
		{"a late write", func(f *facts) { f.World.journal[1].mark.Via = "server-3" }, "server-3 committed 1 writes after it was declared gone at revision 100: gadgets/writer-a at revision 150"},
		{"a late write of a resource never reported again", func(f *facts) { delete(f.Burial.rejoined, workload.Gadgets) }, "server-3 committed 1 writes after"},
		{"nothing was in flight", func(f *facts) { f.Burial.held = 0 }, "nothing is proven"},
		{"never declared gone", func(f *facts) { f.Burial = nil }, "the paused server was not declared gone"},
		{"no agreement after the kill", func(f *facts) { f.AfterKill = -1 }, "did not recover from the kill"},
		{"no agreement after the pause", func(f *facts) { f.AfterResume = -1 }, "did not recover from the pause"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := passing()
			tt.edit(&f)
			r := judge(f)
			if r.Pass || len(r.Reasons) == 0 || !strings.Contains(strings.Join(r.Reasons, "\n"), tt.want) {
				t.Errorf("pass %v, reasons %q, want one with %q", r.Pass, r.Reasons, tt.want)
			}
			if r.Err() == nil || !strings.Contains(r.Err().Error(), "FAILED") {
				t.Errorf("error %v", r.Err())
			}
		})
	}
}

func at(seconds int) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds) * time.Second)
}

func TestExcuse(t *testing.T) {
	faults := []fault{
		{server: "a", kind: killed, from: at(10), to: at(20)},
		{server: "b", kind: rolled, from: at(30), to: at(40)},
		{server: "c", kind: paused, from: at(50)},
	}
	for _, tt := range []struct {
		server   string
		outcome  load.Outcome
		from, to int
		excused  bool
	}{
		{"a", load.Unavailable, 1, 2, true}, // retriable wherever it comes from
		{"a", load.Broken, 12, 13, true},
		{"a", load.Broken, 5, 10, true}, // under way when the server died
		{"a", load.Broken, 1, 9, false},
		{"a", load.Broken, 21, 22, false},
		{"b", load.Broken, 12, 13, false}, // another server was killed
		{"b", load.Unconnected, 35, 36, true},
		{"b", load.Broken, 35, 36, false}, // a graceful stop breaks no connection
		{"b", load.Unconnected, 41, 42, false},
		{"c", load.Broken, 90, 95, true},
		{"c", load.Unexpected, 90, 95, false},
		{"a", load.Conflict, 12, 13, false},
	} {
		t.Run(fmt.Sprintf("%s %s %d", tt.server, tt.outcome, tt.from), func(t *testing.T) {
			got := excuse(load.Failure{Server: tt.server, Outcome: tt.outcome, Started: at(tt.from), At: at(tt.to)}, faults)
			if (got != "") != tt.excused {
				t.Errorf("excuse = %q, want excused %v", got, tt.excused)
			}
		})
	}
}
