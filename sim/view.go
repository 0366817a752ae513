package sim

import (
	"iter"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// The questions by which a seed chooses events that are likely to be possible.

// Host is the world to which the servers of this one report, nil if there is none.
func (w *World) Host() *World { return w.host }

// IsHost says whether the servers of another world report to this one.
func (w *World) IsHost() bool { return w.guest != nil }

// Slots is how many servers there can be.
func (w *World) Slots() int { return w.config.Slots }

// Steps is how many events were possible.
func (w *World) Steps() int { return w.steps }

// EtcdWell says whether etcd answers and takes puts as it should.
func (w *World) EtcdWell() bool { return w.etcd == etcdOK }

// Process is the last process of a slot, nil if there was none.
func (w *World) Process(slot int) *Process { return w.slots[slot] }

// Late are the servers and roles of requests whose senders do not wait any more.
func (w *World) Late() iter.Seq2[int, script.Role] {
	return func(yield func(int, script.Role) bool) {
		for _, r := range w.late {
			if !yield(r.sender.Slot, r.Role) {
				return
			}
		}
	}
}

// Definition is the CustomResourceDefinition of widgets, nil if there is none.
func (w *World) Definition() *apiextensionsv1.CustomResourceDefinition {
	return w.api.LookDefinition()
}

// HasStockLease says whether there is a Lease of a stock server of a slot.
func (w *World) HasStockLease(slot int) bool {
	return w.api.Look(registry.Leases, string(invariant.StockID(slot))) != nil
}

// Leaders counts the servers that believe to lead.
func (w *World) Leaders() int {
	n := 0
	for _, p := range w.slots {
		if p != nil && !p.gone && p.leads {
			n++
		}
	}
	return n
}

// Rewritten returns a resource that some server reads or writes the objects of, to
// migrate it; nil if none does.
func (w *World) Rewritten() *object.Resource {
	for _, p := range w.slots {
		if p == nil || p.gone {
			continue
		}
		for _, t := range &p.tasks {
			if t == nil || t.req == nil || t.req.key == "" || !t.role.Rewrites() {
				continue
			}
			for _, r := range object.All {
				if strings.HasPrefix("/registry/"+t.req.key, r.Prefix) {
					return r
				}
			}
		}
	}
	return nil
}

// HasMigration reports whether a resource has more than n migrations that are not final.
func (w *World) HasMigration(r *object.Resource, n int) bool {
	_, ok := w.live(r, n)
	return ok
}

// HasFailedMigration says whether a migration has failed.
func (w *World) HasFailedMigration() bool {
	return slices.ContainsFunc(w.api.Shelf(registry.Migrations), func(stored registry.Stored) bool {
		m := stored.Object.(*migrationv1alpha1.StorageVersionMigration)
		return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
			return c.Type == migrationv1alpha1.MigrationFailed
		})
	})
}

// Gone says whether the process has ended.
func (p *Process) Gone() bool { return p.gone }

// Paused says whether nothing of the process runs.
func (p *Process) Paused() bool { return p.paused }

// Leaving says whether the process was asked to stop.
func (p *Process) Leaving() bool { return p.leaving }

// Leads says whether the process believes to lead.
func (p *Process) Leads() bool { return p.leads }

// Cut says whether the process does not reach etcd.
func (p *Process) Cut() bool { return p.cut }

// Registered says whether the process has had a Lease.
func (p *Process) Registered() bool { return p.member.ID() != "" }

// IsReplica says whether the process serves an aggregated API, and CutFromHost whether it does not reach its host.
func (p *Process) IsReplica() bool   { return p.replica != nil }
func (p *Process) CutFromHost() bool { return p.replica.cut }

// Lags reports whether there is an event that a watch has not delivered and could deliver now.
func (p *Process) Lags(s script.Stream) bool {
	from := p.source(s)
	return from != nil && !p.cutFrom(from) && p.cursors[s] < len(from.api.Changes[streamKind[s]])
}

// Task is the task of a role, nil if there is none; CanBegin says whether one can be begun then.
func (p *Process) Task(r script.Role) *Task    { return p.tasks[r] }
func (p *Process) CanBegin(r script.Role) bool { return p.startable(r) }

// Slot is the slot of the task's server, and Role the task's role there.
func (t *Task) Slot() int         { return t.p.Slot }
func (t *Task) Role() script.Role { return t.role }

// Asks says whether the task waits for the answer of a request, if it has not ended.
func (t *Task) Asks() bool { return t.req != nil && !t.ended }

// CanGoOn says whether a step of the task is possible, whose request, if any, is answered.
func (t *Task) CanGoOn() bool {
	return !t.p.paused && (t.req != nil && t.req.reaches() || t.req == nil && t.due())
}

// CanFail says whether the request of the task, which has one, can end without an answer.
func (t *Task) CanFail() bool { return !t.p.paused }

// CanApply reports whether the task's pending request can reach its destination even if the sender does not continue.
func (t *Task) CanApply() bool { return !t.req.applied && !t.req.cut() }

// Applied reports whether the task's pending request has been applied, and AsksEtcd whether it goes to etcd.
func (t *Task) Applied() bool  { return t.req.applied }
func (t *Task) AsksEtcd() bool { return t.req.key != "" }
