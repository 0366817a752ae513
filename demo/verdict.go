package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/demo/workload"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

// facts are the observations of the demo, and all that the verdict is made from.
type facts struct {
	// Objects is how many objects were to be loaded.
	Objects int
	// Incomplete says which steps did not come to their end, and why.
	Incomplete []string

	Census migratestore.Census
	// World is the state of etcd at the end, with its history; Hashes has the hash of each
	// resource's storage version, as discovery shows it.
	World  *world
	Hashes map[schema.GroupResource]string
	// Servers are the servers that must be running at the end.
	Servers []string

	Acknowledged int64
	// Lost and Foreign are the findings of the journal of acknowledged writes.
	Lost, Foreign []string
	Failures      []load.Failure
	Faults        []fault
	// Stalls are the longest writes of each step, in the order of Steps.
	Stalls map[string]time.Duration
	Steps  []string

	Burial *burial

	// AfterKill and AfterResume are the times to agreement, negative if there was none.
	AfterKill, AfterResume time.Duration
	Agreements             []Agreement
}

// burial describes what happened to the paused server.
type burial struct {
	server string
	// declared is the revision at which its identity Lease was deleted.
	declared int64
	// rejoined are the revisions of its reports under its new ID.
	rejoined map[schema.GroupResource]int64
	// held is how many requests were in flight in it when it was resumed.
	held int64
	// answers is how many of those got each answer.
	answers map[load.Outcome]int64
}

// judge makes the report: the figures, and whether everything is as it must be.
func judge(f facts) Report {
	objects, perSecond := rate(f.World.bursts)
	late := lateWrites(f.World.journal, f.Burial)
	errors, unexcused := judgeFailures(f.Failures, f.Faults)
	missed := errors[absent]
	delete(errors, absent)
	r := Report{
		Objects:                     f.Objects,
		StoredVersions:              map[string][]string{},
		HeldWritesByAnswer:          map[string]int64{},
		DeadConnectionSeconds:       seconds(workload.PingAfter + workload.PingTimeout),
		AcknowledgedWrites:          f.Acknowledged,
		AcknowledgedLost:            int64(len(f.Lost)),
		WriteErrors:                 int64(len(f.Failures)) - missed,
		Unconnected:                 missed,
		WriteErrorsByKind:           errors,
		WritesAfterDeclaredGone:     int64(len(late)),
		AgreementAfterKillSeconds:   seconds(f.AfterKill),
		AgreementAfterResumeSeconds: seconds(f.AfterResume),
		Agreements:                  append([]Agreement{}, f.Agreements...),
		RewrittenObjects:            objects,
		RewriteObjectsPerSecond:     float64(int64(perSecond)),
	}
	if f.Burial != nil {
		r.WritesHeldByPause = f.Burial.held
		for answer, n := range f.Burial.answers {
			r.HeldWritesByAnswer[string(answer)] = n
		}
	}
	for _, row := range f.Census.Rows {
		r.Census = append(r.Census, Count{Resource: row.Resource, Encoding: row.Encoding, Objects: row.Objects})
	}
	for _, gr := range f.World.sorted() {
		at := f.World.Resources[gr]
		r.Storage = append(r.Storage, Storage{Resource: gr.String(), Agreement: string(at.Common()), StoredSet: listed(at.Stored()), Hashes: listed(hashes(at))})
	}
	for _, at := range f.World.Resources {
		if at.CRD != nil {
			r.StoredVersions[at.CRD.Name] = listed(at.CRD.Status.StoredVersions)
		}
	}
	for _, step := range f.Steps {
		if d, ok := f.Stalls[step]; ok {
			r.LongestWriteStallByStep = append(r.LongestWriteStallByStep, Stall{Step: step, Seconds: seconds(d)})
			r.LongestWriteStallSeconds = max(r.LongestWriteStallSeconds, seconds(d))
		}
	}
	r.Reasons = append(slices.Clone(f.Incomplete), faultsOfWrites(f, unexcused)...)
	r.Reasons = append(r.Reasons, faultsOfCensus(f)...)
	r.Reasons = append(r.Reasons, faultsOfStorage(f)...)
	r.Reasons = append(r.Reasons, faultsOfBurial(f, late)...)
	r.Pass = len(r.Reasons) == 0
	if r.Pass {
		r.Reasons = []string{}
	}
	return r
}

// faultsOfWrites checks that no acknowledged write is lost, and that every write error is a
// retriable 503 or a broken connection to a server that was made to break it.
func faultsOfWrites(f facts, unexcused []string) []string {
	var reasons []string
	if n := len(f.Lost); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d objects lack an acknowledged write: %s", n, some(f.Lost)))
	}
	if n := len(f.Foreign); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d objects show a write that must not exist: %s", n, some(f.Foreign)))
	}
	if n := len(unexcused); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d writes failed that must not: %s", n, some(unexcused)))
	}
	return reasons
}

// judgeFailures counts failed attempts by their excuse and returns those without one.
func judgeFailures(failures []load.Failure, faults []fault) (counts map[string]int64, unexcused []string) {
	counts = map[string]int64{}
	for _, f := range failures {
		kind := excuse(f, faults)
		if kind == "" {
			kind = "unexpected: " + string(f.Outcome)
			unexcused = append(unexcused, f.Err.Error())
		}
		counts[kind]++
	}
	return counts, unexcused
}

// faultsOfCensus checks that everything stored can be read, and that each resource is stored in the one
// encoding that its servers agree on. For the demo's own resources this encoding is known beforehand.
func faultsOfCensus(f facts) []string {
	var reasons []string
	if n := len(f.Census.Unknown); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d stored values cannot be read: %s", n, some(f.Census.Unknown)))
	}
	counted := map[string]int64{}
	for _, row := range f.Census.Rows {
		if row.Resource == migratestore.ResourceOther {
			continue
		}
		counted[row.Resource] += row.Objects
		gr := schema.ParseGroupResource(row.Resource)
		want, ok := workload.Expected[gr]
		if !ok {
			want = f.World.Of(gr).Common()
		}
		switch {
		case want == "":
			reasons = append(reasons, fmt.Sprintf("%s: %d objects are stored in %s, and no servers agree on their encoding", row.Resource, row.Objects, row.Encoding))
		case row.Encoding != string(want):
			reasons = append(reasons, fmt.Sprintf("%s: %d objects are stored in %s, not in %s", row.Resource, row.Objects, row.Encoding, want))
		}
	}
	loaded := map[schema.GroupResource]int64{}
	for i := range f.Objects {
		loaded[workload.LoadedResource(i)]++
	}
	for _, gr := range workload.Shown {
		if counted[gr.String()] < loaded[gr] {
			reasons = append(reasons, fmt.Sprintf("%s: %d objects are stored, %d were loaded", gr, counted[gr.String()], loaded[gr]))
		}
	}
	return reasons
}

// faultsOfStorage checks that exactly the running servers agree, and that stored sets and
// storedVersions are exact.
func faultsOfStorage(f facts) []string {
	var reasons []string
	if lack := f.World.unsettled(f.Servers, workload.Expected); lack != "" {
		reasons = append(reasons, "storage is not settled: "+lack)
	}
	for _, gr := range f.World.sorted() {
		r, hash := f.World.Resources[gr], f.Hashes[gr]
		if r.Exact() && hash != "" && !slices.Equal(hashes(r), []string{hash}) {
			reasons = append(reasons, fmt.Sprintf("%s: the stored set is [%s], discovery says %s", gr, strings.Join(hashes(r), " "), hash))
		}
	}
	return reasons
}

// faultsOfBurial checks that the servers agree again after the kill and after the pause, and
// that the paused server writes nothing between its burial and its new registration.
func faultsOfBurial(f facts, late []written) []string {
	var reasons []string
	if f.AfterKill < 0 {
		reasons = append(reasons, "agreement did not recover from the kill")
	}
	if f.AfterResume < 0 {
		reasons = append(reasons, "agreement did not recover from the pause")
	}
	switch {
	case f.Burial == nil:
		reasons = append(reasons, "the paused server was not declared gone")
	case f.Burial.held == 0:
		reasons = append(reasons, "no request was in flight in the paused server when it was resumed, so that nothing is proven")
	}
	if n := len(late); n > 0 {
		var texts []string
		for _, w := range late {
			texts = append(texts, fmt.Sprintf("%s at revision %d", w.key, w.revision))
		}
		reasons = append(reasons, fmt.Sprintf("%s committed %d writes after it was declared gone at revision %d: %s", f.Burial.server, n, f.Burial.declared, some(texts)))
	}
	return reasons
}

// lateWrites returns the writes that the paused server committed between its burial and its new
// report of the resource.
func lateWrites(journal []written, b *burial) []written {
	var late []written
	for _, w := range journal {
		if b == nil || w.mark.Via != b.server || w.revision <= b.declared {
			continue
		}
		if rejoined, ok := b.rejoined[w.key.Resource]; !ok || w.revision < rejoined {
			late = append(late, w)
		}
	}
	return late
}

// hashes returns the stored set as storage version hashes, as stock clients read it.
func hashes(r *ledger.Resource) []string {
	if r.State == nil {
		return nil
	}
	return r.State.Status.PersistedStorageVersionHashes
}

// listed returns a copy of a list. The copy is never nil.
func listed(list []string) []string { return append([]string{}, list...) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// encodingVersion returns the version of an encoding: "v1" of "apps/v1".
func encodingVersion(e agree.Encoding) string {
	s := string(e)
	return s[strings.LastIndex(s, "/")+1:]
}
