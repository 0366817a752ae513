package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
)

// moment is a point in etcd's history and when the demo saw it.
type moment struct {
	revision int64
	at       time.Time
}

// participant is an identity Lease.
type participant struct {
	release string
	// gone is when the Lease was deleted, zero while it exists.
	gone moment
}

// resource is the state of one resource's storage in etcd. Its slices and maps are never
// changed in place.
type resource struct {
	reports []agree.Report
	common  agree.Encoding // empty without agreement
	ref     evolve.Ref     // of the StorageVersion
	// joined is when a server's report first appeared.
	joined map[agree.ServerID]moment

	hasState bool
	stored   []agree.Encoding
	hashes   []string
	stateRef evolve.Ref // of the StorageVersion that the stored set is computed for
}

func (r resource) report(id agree.ServerID) (agree.Report, bool) {
	i := slices.IndexFunc(r.reports, func(report agree.Report) bool { return report.Server == id })
	if i < 0 {
		return agree.Report{}, false
	}
	return r.reports[i], true
}

// exact says whether the stored set is known to be the encoding that all agree on.
func (r resource) exact() bool {
	return r.hasState && r.common != "" && r.stateRef == r.ref && slices.Equal(r.stored, []agree.Encoding{r.common})
}

// migration is a StorageVersionMigration.
type migration struct {
	resource schema.GroupResource
	phase    evolve.Phase
	reason   string
	progress migrationv1alpha1.MigrationProgress
	order    int // later ones have a higher one
	running  time.Time
}

// storedCRD has the storage version and the storedVersions of a CustomResourceDefinition.
type storedCRD struct {
	storage string
	stored  []string
}

// burst is a series of rewrites of one resource's objects.
type burst struct {
	resource    schema.GroupResource
	objects     int64
	first, last time.Time
}

// written is one write of a writer's object that etcd committed; rewrites of the same
// content are none.
type written struct {
	revision int64
	key      workload.ObjectKey
	mark     workload.Mark
}

// view is the state of etcd at one moment. It is not changed any more.
type view struct {
	participants map[agree.ServerID]participant
	ids          map[string]agree.ServerID // of each server's last registration
	resources    map[schema.GroupResource]resource
	migrations   map[types.UID]migration
	crds         map[string]storedCRD
	// counts are how many objects of the demo's resources are stored in each encoding.
	counts map[schema.GroupResource]map[agree.Encoding]int64
}

// world follows etcd. Its apply methods decide from values only what has changed.
type world struct {
	mu       sync.Mutex
	changed  chan struct{}
	revision int64 // everything up to it has been seen
	broken   error // why not everything was seen

	view      view
	expecting []string          // servers that will register, in this order
	states    map[string]string // the StorageVersion name for each StorageState
	attempts  map[workload.ObjectKey]string
	encodings map[workload.ObjectKey]agree.Encoding
	journal   []written
	bursts    []burst
}

func newWorld() *world {
	return &world{
		changed: make(chan struct{}),
		view: view{
			participants: map[agree.ServerID]participant{},
			ids:          map[string]agree.ServerID{},
			resources:    map[schema.GroupResource]resource{},
			migrations:   map[types.UID]migration{},
			crds:         map[string]storedCRD{},
			counts:       map[schema.GroupResource]map[agree.Encoding]int64{},
		},
		states:    map[string]string{},
		attempts:  map[workload.ObjectKey]string{},
		encodings: map[workload.ObjectKey]agree.Encoding{},
	}
}

// look returns the present view and a channel that is closed when there is another.
func (w *world) look() (*view, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[schema.GroupResource]map[agree.Encoding]int64{}
	for gr, count := range w.view.counts {
		counts[gr] = maps.Clone(count)
	}
	return &view{
		counts:       counts,
		participants: maps.Clone(w.view.participants),
		ids:          maps.Clone(w.view.ids),
		resources:    maps.Clone(w.view.resources),
		migrations:   maps.Clone(w.view.migrations),
		crds:         maps.Clone(w.view.crds),
	}, w.changed
}

// expect says that the next registration is this server's.
func (w *world) expect(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expecting = append(w.expecting, server)
	delete(w.view.ids, server)
}

// notify wakes all that wait for a change. The caller holds w.mu.
func (w *world) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// history returns the writes and the rewrites so far.
func (w *world) history() ([]written, []burst) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.journal), slices.Clone(w.bursts)
}

// register attributes a new identity Lease: to the server that is expected, else to one
// that has lost its own.
func (w *world) register(id agree.ServerID) {
	if len(w.expecting) > 0 {
		w.view.ids[w.expecting[0]] = id
		w.expecting = w.expecting[1:]
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.view.ids)) {
		if p, ok := w.view.participants[w.view.ids[name]]; ok && p.gone.revision != 0 {
			w.view.ids[name] = id
			return
		}
	}
}

// count notes in which encoding an object is stored now, "" for not at all.
func (w *world) count(key workload.ObjectKey, encoding agree.Encoding) {
	counts := w.view.counts[key.Resource]
	if counts == nil {
		counts = map[agree.Encoding]int64{}
		w.view.counts[key.Resource] = counts
	}
	if old, ok := w.encodings[key]; ok {
		if counts[old]--; counts[old] == 0 {
			delete(counts, old)
		}
		delete(w.encodings, key)
	}
	if encoding != "" {
		counts[encoding]++
		w.encodings[key] = encoding
	}
}

// rewritten counts an object that was written again with the same content.
func (w *world) rewritten(gr schema.GroupResource, now time.Time) {
	// A pause this long separates two migrations.
	const gap = 2 * time.Second
	for i := len(w.bursts) - 1; i >= 0; i-- {
		if b := &w.bursts[i]; b.resource == gr && now.Sub(b.last) < gap {
			b.objects++
			b.last = now
			return
		}
	}
	w.bursts = append(w.bursts, burst{resource: gr, objects: 1, first: w.since(gr, now), last: now})
}

// since returns when the migration that rewrites began to run, at most now.
func (w *world) since(gr schema.GroupResource, now time.Time) time.Time {
	first, order := now, -1
	for _, m := range w.view.migrations {
		if m.resource == gr && !m.running.IsZero() && m.order > order && m.phase == evolve.Running {
			first, order = m.running, m.order
		}
	}
	return first
}

// rate returns how many objects were rewritten, and how many per second while it lasted.
func rate(bursts []burst) (objects int64, perSecond float64) {
	var lasted time.Duration
	for _, b := range bursts {
		objects += b.objects
		lasted += b.last.Sub(b.first)
	}
	if lasted > 0 {
		perSecond = float64(objects) / lasted.Seconds()
	}
	return objects, perSecond
}

// registered returns the ID of a server's registration, if its Lease exists.
func (v *view) registered(server string) (agree.ServerID, bool) {
	id, ok := v.ids[server]
	if !ok {
		return "", false
	}
	p, ok := v.participants[id]
	return id, ok && p.gone.revision == 0
}

// unreported names the resources that the server has not reported, "" if it has reported everything.
func (v *view) unreported(server string) string {
	id, ok := v.registered(server)
	if !ok {
		return server + " is not registered"
	}
	return v.where(func(_ schema.GroupResource, r resource) string {
		if _, ok := r.report(id); !ok {
			return "no report of " + server
		}
		return ""
	})
}

// reportedBy names the resources that an ID still reports, "" if none.
func (v *view) reportedBy(id agree.ServerID) string {
	return v.where(func(_ schema.GroupResource, r resource) string {
		if _, ok := r.report(id); ok {
			return "still reported by " + string(id)
		}
		return ""
	})
}

// disagreed names the resources whose reports are not exactly those of the servers named,
// or do not agree; "" if there are none.
func (v *view) disagreed(servers []string) string {
	ids := map[agree.ServerID]string{}
	for _, server := range servers {
		id, ok := v.registered(server)
		if !ok {
			return server + " is not registered"
		}
		ids[id] = server
	}
	return v.where(func(_ schema.GroupResource, r resource) string {
		for _, report := range r.reports {
			if ids[report.Server] == "" {
				return "reported by " + string(report.Server) + ", which is no running server's ID"
			}
		}
		switch {
		case len(r.reports) < len(ids):
			return fmt.Sprintf("%d of %d reports", len(r.reports), len(ids))
		case r.common == "":
			return "servers report " + agree.Join(agree.Encodings(r.reports))
		}
		return ""
	})
}

// unsettled names the reason why storage is not settled: no agreement of exactly the
// servers named, an encoding other than wanted, a stored set or storedVersions that are
// not exact. It returns "" if there is none.
func (v *view) unsettled(servers []string, wanted map[schema.GroupResource]agree.Encoding) string {
	if lack := v.disagreed(servers); lack != "" {
		return lack
	}
	lack := v.where(func(gr schema.GroupResource, r resource) string {
		switch want, ok := wanted[gr]; {
		case ok && r.common != want:
			return fmt.Sprintf("agreed on %s, not on %s", r.common, want)
		case !r.hasState:
			return "it has no StorageState"
		case !r.exact():
			return fmt.Sprintf("stored set [%s] for %s, agreed on %s at %s", agree.Join(r.stored), r.stateRef, r.common, r.ref)
		}
		return ""
	})
	if lack != "" {
		return lack
	}
	for _, gr := range slices.SortedFunc(maps.Keys(wanted), compareResources) {
		if _, ok := v.resources[gr]; !ok {
			return gr.String() + ": it has no StorageVersion"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.crds)) {
		if crd := v.crds[name]; !slices.Equal(crd.stored, []string{crd.storage}) {
			return fmt.Sprintf("CustomResourceDefinition %s: storedVersions [%s], stored in %s", name, strings.Join(crd.stored, " "), crd.storage)
		}
	}
	return ""
}

// where collects the answers of lacks for each resource and describes the first few.
func (v *view) where(lacks func(schema.GroupResource, resource) string) string {
	var found []string
	for _, gr := range v.sorted() {
		if lack := lacks(gr, v.resources[gr]); lack != "" {
			found = append(found, gr.String()+": "+lack)
		}
	}
	return some(found)
}

func (v *view) sorted() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(v.resources), compareResources)
}

func compareResources(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }

// latest returns the newest migration of a resource.
func (v *view) latest(gr schema.GroupResource) (migration, bool) {
	var found migration
	ok := false
	for _, m := range v.migrations {
		if m.resource == gr && (!ok || m.order > found.order) {
			found, ok = m, true
		}
	}
	return found, ok
}

// identity says whether the labels are those of an API server's identity Lease.
func identity(labels map[string]string) bool {
	return labels[storageversion.IdentityLabel] == storageversion.IdentityLabelValue
}

// some quotes the first few of a list.
func some(list []string) string {
	const few = 3
	if len(list) <= few {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:few], "; "), len(list)-few)
}
