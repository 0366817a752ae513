package observed

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

// definitionReporter stands in a History for the version that a CustomResourceDefinition says to
// store: any kube-apiserver may have written it, also if it did not show it when it was asked.
const definitionReporter = "customresourcedefinition"

// settling is how Resource.Why begins where all agree, and nothing but time has to pass; after until is the time.
const settling, until = "all kube-apiservers store ", ": until "

// Settling says whether the reason why a resource is not agreed on, Resource.Why, passes by itself.
func Settling(why string) bool { return strings.HasPrefix(why, settling) }

// SettlesAt returns when such a reason passes: it names no date, and this is the closest such time to near. It is not ok
// for other reasons.
func SettlesAt(why string, near time.Time) (at time.Time, ok bool) {
	_, named, _ := strings.Cut(why, until)
	named, _, _ = strings.Cut(named, " ")
	const day = 24 * time.Hour
	at, err := time.Parse(time.TimeOnly, named)
	at = near.Truncate(day).Add(at.Sub(at.Truncate(day)))
	return at.Add(near.Sub(at).Round(day)), err == nil && Settling(why)
}

// Memory collects the answers of kube-apiservers, round by round. It takes the place of the StorageVersions of servers
// that report. Each resource has a uid, which tells since when rounds were made without a gap, and a History of
// encodings.
type Memory struct {
	config Config
	// processes are the processes that had a Lease in the last full round, and whether they ever answered.
	processes map[Process]bool
	// silent says that one of them was asked in a round and did not answer.
	silent bool
	// anew explains why built-in resources began again in the last round; empty if none did.
	anew      string
	resources map[schema.GroupResource]*resource
}

// Config configures a Memory.
type Config struct {
	// Settle is for how long all have to store one version before that counts: requests that
	// are under way may still write another one. It is longer than requests may take.
	Settle time.Duration
	// Gap is the time between two rounds after which nobody counts as having looked: an earlier agreement has to
	// settle again, and everything to be migrated and proven once more, as after a silence. It is longer than the time
	// between rounds; 0: there is no such time.
	Gap time.Duration
	// States are the StorageStates from before. A StorageState whose heartbeat is older than evolve.DiscoveryPeriod
	// says nothing about the time since, and its resource begins again (KEP-2343).
	States map[schema.GroupResource]evolve.State
}

// NewMemory returns an empty one.
func NewMemory(c Config) *Memory {
	return &Memory{config: c, processes: map[Process]bool{}, resources: map[schema.GroupResource]*resource{}}
}

type resource struct {
	Resource
	custom bool
	// last has the report of the encoding that each process was last seen to write.
	last map[Process]agree.Report
	// steady is the encoding that all have written since; empty while there is none.
	steady agree.Encoding
	since  time.Time
	// asked is when all had answered in the last round; zero before the first.
	asked time.Time
	// agreed is the epoch at which there was a Common last, 0 if there was none.
	agreed int64
	// inherited says that agreed is from before the start, and that nobody was asked since: all processes with a Lease
	// answered at that time, but it is not known which these were.
	inherited bool
	// silent says that a process was asked and did not answer in a round before those in which the resource was shown.
	silent bool
}

// Resource is a Memory's record of one resource.
type Resource struct {
	UID     string
	History agree.History
	Reports []agree.Report
	// Definition is the definition up to which what it said to store is in History.
	Definition Revision
	// Common is the encoding that all kube-apiservers store, and have stored for long enough;
	// empty otherwise.
	Common agree.Encoding
	// Why is why there is no Common, for people.
	Why string
}

// Anew explains why built-in resources began again in the last round, so that they are migrated and proven once more;
// empty if none did.
func (m *Memory) Anew() string { return m.anew }

// Of returns the record of a resource.
func (m *Memory) Of(gr schema.GroupResource) (Resource, bool) {
	r, ok := m.resources[gr]
	if !ok {
		return Resource{}, false
	}
	return r.Resource, true
}

// Resources are all that are remembered, in their order.
func (m *Memory) Resources() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(m.resources), func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
}

// Observe records a round and returns the resources about which something has changed.
func (m *Memory) Observe(r Round) []schema.GroupResource {
	unseen := m.unseen(r)
	if m.anew = ""; len(unseen) > 0 {
		m.anew = fmt.Sprintf("the kube-apiserver %s, %s, is gone and never answered: nobody knows in which versions it wrote", unseen[0].Lease, unseen[0].Holder)
	}
	var changed []schema.GroupResource
	for _, gr := range m.concerned(r) {
		verdict := r.Judge(gr)
		stored := verdict.Shown && !foreign(gr, verdict.Reports)
		known := m.resources[gr]
		definition, defined := r.Defined[gr]
		switch {
		case known == nil && !stored && !definition.NotServed:
			continue
		case known == nil:
			known = m.begin(gr, defined, r)
			m.resources[gr] = known
		case !stored && verdict.Whole && !defined:
			delete(m.resources, gr)
			delete(m.config.States, gr) // what is made anew under the name has nothing to do with it
			changed = append(changed, gr)
			continue
		case !known.custom && !defined && known.gap(r) > evolve.DiscoveryPeriod:
			m.anew = fmt.Sprintf("nobody has looked for %s", known.gap(r).Round(time.Second))
			known = known.anew(r)
			m.resources[gr] = known
		}
		if known.observe(r, gr, verdict, unseen, m.config) {
			changed = append(changed, gr)
		}
	}
	m.silent = m.silent || slices.ContainsFunc(r.After, func(replica Replica) bool { return r.inVain(replica, r.Only...) })
	return changed
}

// Found has everything of a resource migrated and proven once more: an object was found that is stored in
// another way than all agree on, in any of these versions.
func (m *Memory) Found(gr schema.GroupResource, stored []agree.Encoding) (known bool) {
	k := m.resources[gr]
	if k == nil {
		return false
	}
	for _, e := range stored {
		k.History = k.History.Next(append(slices.Clone(k.Reports), agree.Report{Server: definitionReporter, Encoding: e}))
	}
	k.History = k.History.Next(k.Reports)
	if k.Common != "" {
		k.agreed = k.History.Epoch
	}
	return true
}

// concerned returns the resources that a round is about, in their order.
func (m *Memory) concerned(r Round) []schema.GroupResource {
	if len(r.Only) > 0 {
		return r.Only
	}
	all := map[schema.GroupResource]bool{}
	for gr := range m.resources {
		all[gr] = true
	}
	for _, answer := range r.Answers {
		for gr := range answer.Shown {
			all[gr] = true
		}
	}
	for gr, definition := range r.Defined {
		if definition.NotServed { // nobody shows it
			all[gr] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) })
}

// foreign reports whether a resource is another view of objects that are stored, and migrated, under another group, as
// events.k8s.io/events is of the core group's events: all replicas that reported it store it like that.
func foreign(gr schema.GroupResource, reports []agree.Report) bool {
	return len(reports) > 0 && !slices.ContainsFunc(reports, func(r agree.Report) bool {
		gv, err := schema.ParseGroupVersion(string(r.Encoding))
		return r.Encoding == agree.Unknown || err != nil || gv.Group == gr.Group
	})
}

// unseen returns the processes that had a Lease and are gone without ever having answered: it is not known what they
// wrote. Only a full round can show this.
func (m *Memory) unseen(r Round) []Process {
	if len(r.Only) > 0 {
		return nil
	}
	now := map[Process]bool{}
	for _, replica := range append(slices.Clone(r.Before), r.After...) {
		if replica.Lease == Unleased {
			continue // its Lease or its endpoint may be late
		}
		answer, asked := r.Answers[replica.Process]
		now[replica.Process] = m.processes[replica.Process] || asked && answer.Failed == ""
	}
	var gone []Process
	for p, answered := range m.processes {
		if _, here := now[p]; !here && !answered {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(a, b Process) int { return cmp.Compare(a.Lease, b.Lease) })
	m.processes = now
	return gone
}

// begin makes the memory of a resource that is seen for the first time since the start, or since it
// was gone. No two have one uid and one epoch, for which a migration of the one would count for
// the other.
func (m *Memory) begin(gr schema.GroupResource, custom bool, r Round) *resource {
	known := &resource{custom: custom, last: map[Process]agree.Report{}}
	state, ok := m.config.States[gr]
	var begun Begun
	if ok {
		begun, ok = ParseUID(state.Of.UID)
	}
	definition := r.Defined[gr]
	anew := definition.Revision.replaces(Revision(state.Definition)) // objects may be left of the one before
	if ok && !anew && fresh(state.Heartbeat, r.Began) {
		known.goOn(state, definition)
		if known.silent = m.silent; known.silent {
			known.steady = "" // as in a round in which it is
		}
		return known
	}
	release := r.Release()
	same := ok && !custom && begun.Release == release && state.Current != evolve.Unknown
	known.UID = Begun{At: r.Began, Release: release, Same: same}.UID()
	return known
}

// Kept says whether controllers such as these keep a StorageState now. They give it the uid of a Resource; other
// programs, such as kube-storage-version-migrator, keep states of the same names.
func Kept(state evolve.State, now time.Time) bool {
	_, ok := ParseUID(state.Of.UID)
	return ok && fresh(state.Heartbeat, now)
}

// fresh reports whether a heartbeat covers the time until now. A heartbeat in the future was written with another
// clock, and its time is not known.
func fresh(heartbeat, now time.Time) bool {
	return heartbeat.Sub(now) <= evolve.DiscoveryPeriod && !evolve.Recreate(heartbeat, now)
}

// goOn takes up a StorageState from before the start. Its migration goes on, if nothing else may have been
// stored in the time in which nobody looked:
//
// The API server adds a version to storedVersions before it stores it. So one that was stored meanwhile is
// in storedVersions, unless somebody else took it out again: these controllers do so only as long as the
// definition, and the epoch, are those of the proof, and the guards keep others from it. If the
// definition is the one that the state counts with, only a version is of interest that the state lacks: one
// that the proof had freed and that was not pruned yet looks the same, and is migrated once more.
// If the definition is another one, its version may have been flipped there and back, also between two
// that the state has, after a part of the objects was migrated, or all. Then all that the state and
// storedVersions name begin new epochs, for which no migration of before counts. Where neither names
// another version than the current one, there was no such flip, and nothing is migrated: all changes of
// a definition, as of its schema, give it another generation. It settles anew all the same.
func (k *resource) goOn(state evolve.State, definition Definition) {
	k.UID = state.Of.UID
	k.History = agree.History{Epoch: state.Of.Epoch, Last: map[agree.Encoding]int64{}}
	if state.Current != evolve.Unknown && state.Current != "" {
		k.History.Last[state.Current] = state.Of.Epoch
		k.steady = state.Current // it had settled
		k.agreed, k.inherited = state.Of.Epoch, true
	}
	said := slices.Concat(state.Stored, state.Listed, definition.Stored)
	if definition.Revision == Revision(state.Definition) {
		said = slices.DeleteFunc(slices.Clone(definition.Stored), func(e agree.Encoding) bool {
			return slices.Contains(state.Stored, e) || slices.Contains(state.Stored, evolve.Unknown)
		})
	} else {
		k.steady = ""
	}
	for _, e := range said {
		if e != state.Current && k.History.Last[e] == 0 {
			k.History = k.History.Next([]agree.Report{{Server: definitionReporter, Encoding: e}})
			k.steady = ""
		}
	}
}

// gap returns how long nobody had looked when a round began, by whichever clock shows more: on a suspended host one of
// them stops.
func (k *resource) gap(r Round) time.Duration {
	if k.asked.IsZero() {
		return 0
	}
	return max(r.Began.Sub(k.asked), r.Began.Round(0).Sub(k.asked.Round(0)))
}

// anew returns a built-in resource as it begins after a start (KEP-2343), for use after a time without rounds that is
// longer than a heartbeat covers.
func (k *resource) anew(r Round) *resource {
	before, _ := ParseUID(k.UID)
	begun := Begun{At: r.Began, Release: r.Release(), Same: k.Common != "" && before.Release == r.Release()}
	return &resource{Resource: Resource{UID: begun.UID()}, last: map[Process]agree.Report{}}
}

// observe takes in what a round says of the resource, and says whether that is anything new.
func (k *resource) observe(r Round, gr schema.GroupResource, v Verdict, unseen []Process, config Config) bool {
	before := k.Resource
	missed := config.Gap > 0 && k.gap(r) > config.Gap
	k.asked = r.Asked
	definition, custom := r.Defined[gr]
	k.custom = k.custom || custom
	if custom {
		k.Definition = definition.Revision
	}
	k.reports(r, gr, v)
	k.Common, k.Why = "", v.Why
	if missed || slices.ContainsFunc(definition.Said, func(e agree.Encoding) bool { return e != v.Encoding }) {
		k.steady = "" // requests that began meanwhile may still write it
	}
	if v.Encoding == "" {
		k.steady = ""
	} else {
		if k.steady != v.Encoding {
			k.steady, k.since = v.Encoding, r.Asked // until it answered, a replica may have begun to write another one
		}
		if at := k.since.Add(config.Settle); r.Began.Before(at) {
			k.Why = fmt.Sprintf("%s%s%s%s UTC requests that were under way may still write another version", settling, v.Encoding, until, at.UTC().Format(time.TimeOnly))
		} else {
			k.Common = v.Encoding
		}
	}
	written := slices.Clone(k.Reports)
	for _, e := range slices.Concat(definition.Said, k.late(r, gr, definition, missed)) { // one after the other, so that each is remembered
		k.History = k.History.Next(append(slices.Clone(written), agree.Report{Server: definitionReporter, Encoding: e}))
	}
	if custom && definition.Stores != "" {
		written = append(written, agree.Report{Server: definitionReporter, Encoding: definition.Stores})
	}
	if len(unseen) > 0 && !k.custom {
		written = append(written, agree.Report{Server: unseen[0].Lease, Encoding: agree.Unknown})
	}
	if len(written) > 0 {
		k.History = k.History.Next(written)
	}
	if k.Common != "" {
		k.agreed = k.History.Epoch
	}
	k.inherited = false
	return before.UID != k.UID || before.Definition != k.Definition || before.Common != k.Common || before.Why != k.Why || before.History.Epoch != k.History.Epoch ||
		len(before.History.Last) != len(k.History.Last) || !agree.Equal(before.Reports, k.Reports)
}

// late are the versions that may be written from now on by a replica that does not answer although
// it did, and all had agreed, also before the start: if it is paused, the requests that it had begun go on when it does,
// however long ago they began. After a time in which nobody asked, any of them may have been paused in it. These are the versions that nobody may take out of the definition
// yet: as long as storedVersions has more than one, they begin new epochs, so that everything is
// migrated, and proven, once more when all agree again. A version that was pruned is not looked
// for any more: before that, every replica had answered for as long as --prune-after says.
func (k *resource) late(r Round, gr schema.GroupResource, definition Definition, missed bool) []agree.Encoding {
	silent := k.inherited && k.silent || slices.ContainsFunc(r.After, func(replica Replica) bool {
		if k.inherited {
			return r.inVain(replica, gr) // it was there before this round
		}
		_, answered := k.last[replica.Process]
		_, why := r.answer(replica, gr)
		return answered && why != ""
	})
	if missed || silent && k.agreed != 0 && k.agreed == k.History.Epoch {
		return definition.Stored
	}
	return nil
}

// reports brings the report of each process's last known encoding up to date, and the reports of
// the resource with it: a process that does not answer now still writes the encoding that it did.
func (k *resource) reports(r Round, gr schema.GroupResource, v Verdict) {
	last := map[Process]agree.Report{}
	k.Reports = nil
	for _, replica := range r.After {
		report, ok := agree.Of(v.Reports, replica.Lease)
		if !ok {
			if _, why := r.answer(replica, gr); why != "" {
				report, ok = k.last[replica.Process]
			}
		}
		if ok {
			last[replica.Process] = report
			k.Reports = append(k.Reports, report)
		}
	}
	k.last = last
}

// Begun is the content of the uid of a Resource.
type Begun struct {
	// At is since when somebody has looked.
	At time.Time
	// Release is the release that the kube-apiservers had then.
	Release string
	// Same says that nobody had looked for a while, and that the release is the same as before.
	Same bool
}

const (
	uidMark  = "observed"
	sameMark = "same"
)

// UID is its text: "<seconds, hexadecimal>-observed-<release>", and "-same" after it. The text
// before the first dash becomes a part of the names of migrations.
func (b Begun) UID() string {
	parts := []string{strconv.FormatInt(b.At.Unix(), 16), uidMark, b.Release}
	if b.Same {
		parts = append(parts, sameMark)
	}
	return strings.Join(parts, "-")
}

// ParseUID reads the uid of a Resource; a StorageVersion's is none.
func ParseUID(uid string) (b Begun, ok bool) {
	parts := strings.Split(uid, "-")
	if len(parts) < 3 || parts[1] != uidMark {
		return Begun{}, false
	}
	seconds, err := strconv.ParseInt(parts[0], 16, 64)
	return Begun{At: time.Unix(seconds, 0).UTC(), Release: parts[2], Same: len(parts) > 3 && parts[3] == sameMark}, err == nil
}
