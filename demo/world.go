package demo

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

// burst is a series of rewrites of one resource's objects.
type burst struct {
	resource    schema.GroupResource
	objects     int64
	first, last time.Time
}

// written is a write of a writer's object that etcd has committed. A rewrite of the same content is not one.
type written struct {
	revision int64
	key      load.Key
	mark     load.Mark
}

// root is the prefix of all that API servers store.
const root = storedsets.DefaultPrefix + "/"

// world is the demo's view of the ledger of its etcd: which registrations belong to which server, and which writes
// were clients' writes or rewrites. apply derives what has changed from the values alone.
type world struct {
	*ledger.Ledger
	broken error // why the world is incomplete

	ids       map[string]agree.ServerID // of each server's last registration
	expecting []string                  // servers that will register, in this order
	attempts  map[load.Key]string
	journal   []written
	bursts    []burst
}

func newWorld() *world {
	return &world{Ledger: ledger.New(root), ids: map[string]agree.ServerID{}, attempts: map[load.Key]string{}}
}

// expect says that the next registration belongs to this server.
func (w *world) expect(server string) {
	w.expecting = append(w.expecting, server)
	delete(w.ids, server)
}

// apply adds an event to the world.
func (w *world) apply(e ledger.Event) {
	c, err := w.Read(e)
	if errors.Is(err, ledger.ErrNoObject) && !strings.HasPrefix(path.Base(e.Key), workload.WriterPrefix) {
		return // the census counts such values
	}
	if err == nil && c != nil {
		w.Apply(c)
		if c.Registered != "" {
			w.register(c.Registered)
		}
		err = w.object(c)
	}
	if err != nil && w.broken == nil {
		w.broken = fmt.Errorf("stored value of %s: %w", e.Key, err)
	}
}

// object records a write of one of the demo's objects. A client writes a loaded object once, so every further write of
// it is a rewrite; a rewrite of a writer's object shows the same attempt as before.
func (w *world) object(c *ledger.Change) error {
	if c.Is == nil || !slices.Contains(workload.Shown, c.Is.Resource) {
		return nil
	}
	key := load.Key{Resource: c.Is.Resource, Name: path.Base(c.Key)}
	if !strings.HasPrefix(key.Name, workload.WriterPrefix) {
		if c.Was != nil {
			w.rewritten(key.Resource, c.At)
		}
		return nil
	}
	m, err := workload.StoredMark(c.Value)
	switch {
	case err != nil:
		return err
	case w.attempts[key] == m.Attempt:
		w.rewritten(key.Resource, c.At)
	default:
		w.attempts[key] = m.Attempt
		w.journal = append(w.journal, written{revision: c.Revision, key: key, mark: m})
	}
	return nil
}

// register attributes a new identity Lease to the server that is expected, or else to one that has lost its own.
func (w *world) register(id agree.ServerID) {
	if len(w.expecting) > 0 {
		w.ids[w.expecting[0]] = id
		w.expecting = w.expecting[1:]
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.ids)) {
		if s := w.Servers[w.ids[name]]; s != nil && s.Gone != 0 {
			w.ids[name] = id
			return
		}
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

// since returns when the newest running migration of the resource began to run, or now if there is none.
func (w *world) since(gr schema.GroupResource, now time.Time) time.Time {
	first, order := now, -1
	for _, m := range w.Migrations {
		if m.Resource == gr && m.Order > order && m.Phase == evolve.Running {
			first, order = m.Running, m.Order
		}
	}
	return first
}

// rate returns how many objects were rewritten, and how many per second while rewrites went on.
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
func (w *world) registered(server string) (agree.ServerID, bool) {
	id := w.ids[server]
	s := w.Servers[id]
	return id, s != nil && s.Gone == 0
}

// unreported names the resources that the server has not reported, "" if it has reported everything.
func (w *world) unreported(server string) string {
	id, ok := w.registered(server)
	if !ok {
		return server + " is not registered"
	}
	return w.where(func(_ schema.GroupResource, r *ledger.Resource) string {
		if r.Report(id) == nil {
			return "no report of " + server
		}
		return ""
	})
}

// reportedBy names the resources that an ID still reports, "" if none.
func (w *world) reportedBy(id agree.ServerID) string {
	return w.where(func(_ schema.GroupResource, r *ledger.Resource) string {
		if r.Report(id) != nil {
			return "still reported by " + string(id)
		}
		return ""
	})
}

// disagreed names the resources whose reports are not exactly those of the given servers, or do not agree; "" if there
// are none.
func (w *world) disagreed(servers []string) string {
	ids := map[agree.ServerID]string{}
	for _, server := range servers {
		id, ok := w.registered(server)
		if !ok {
			return server + " is not registered"
		}
		ids[id] = server
	}
	return w.where(func(_ schema.GroupResource, r *ledger.Resource) string {
		for _, report := range r.Reports() {
			if ids[report.Server] == "" {
				return "reported by " + string(report.Server) + ", which is no running server's ID"
			}
		}
		switch {
		case len(r.Reports()) < len(ids):
			return fmt.Sprintf("%d of %d reports", len(r.Reports()), len(ids))
		case r.Common() == "":
			return "servers report " + agree.Join(agree.Encodings(r.Reports()))
		}
		return ""
	})
}

// unsettled names the reason why storage is not settled: no agreement of exactly the
// servers named, an encoding other than wanted, a stored set or storedVersions that are
// not exact. It returns "" if there is none.
func (w *world) unsettled(servers []string, wanted map[schema.GroupResource]agree.Encoding) string {
	if lack := w.disagreed(servers); lack != "" {
		return lack
	}
	lack := w.where(func(gr schema.GroupResource, r *ledger.Resource) string {
		if want, ok := wanted[gr]; ok && r.Common() != want {
			return fmt.Sprintf("agreed on %s, not on %s", r.Common(), want)
		}
		return r.Unsettled()
	})
	if lack != "" {
		return lack
	}
	all := w.sorted()
	for _, gr := range slices.SortedFunc(maps.Keys(wanted), compareResources) {
		if !slices.Contains(all, gr) {
			return gr.String() + ": it has no StorageVersion"
		}
	}
	return ""
}

// where collects the answers of lacks for each resource and describes the first few.
func (w *world) where(lacks func(schema.GroupResource, *ledger.Resource) string) string {
	var found []string
	for _, gr := range w.sorted() {
		if lack := lacks(gr, w.Resources[gr]); lack != "" {
			found = append(found, gr.String()+": "+lack)
		}
	}
	return some(found)
}

// sorted returns the resources that have, or had, a StorageVersion or a StorageState, or have a
// CustomResourceDefinition.
func (w *world) sorted() []schema.GroupResource {
	var found []schema.GroupResource
	for gr, r := range w.Resources {
		if r.Version != nil || r.State != nil || r.CRD != nil || len(r.Joined) > 0 {
			found = append(found, gr)
		}
	}
	return slices.SortedFunc(slices.Values(found), compareResources)
}

func compareResources(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }

// latest returns the newest migration of a resource, nil if there is none.
func (w *world) latest(gr schema.GroupResource) (found *ledger.Migration) {
	for _, m := range w.Migrations {
		if m.Resource == gr && (found == nil || m.Order > found.Order) {
			found = m
		}
	}
	return found
}

// some quotes the first few of a list.
func some(list []string) string {
	const few = 3
	if len(list) <= few {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:few], "; "), len(list)-few)
}
