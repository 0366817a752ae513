package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/stock/observed"
)

// index finds observed objects by their resource.
type index struct {
	Observed
	servers []servers.Server
	of      map[schema.GroupResource]*resource
	// told is when each server that has claimed migrations wrote last that one of them runs.
	told map[string]time.Time
	// claimed are the migrations that have not ended and that a server has claimed which is not gone.
	claimed []*migrationv1alpha1.StorageVersionMigration
	// migrates says whether a migration is under way, of any resource: others wait for it. One whose server is gone is,
	// until another one must have taken it over.
	migrates bool
	// stockAnswered says that a kube-apiserver without StorageVersions answered, in a cluster that has other servers,
	// so that the servers' reports are not known.
	stockAnswered bool
}

// resource is all that was observed of one resource. Fields are nil where there is nothing.
type resource struct {
	schema.GroupResource
	version *apiserverinternalv1alpha1.StorageVersion
	state   *migrationv1alpha1.StorageState
	crd     *apiextensionsv1.CustomResourceDefinition
	// migrations have the newest first.
	migrations []*migrationv1alpha1.StorageVersionMigration

	reports []agree.Report
	// common is the encoding that all servers agree on, empty if they do not. In a stock cluster it is the observed
	// encoding.
	common agree.Encoding
	// agreement is the encoding that reporting servers agree on, with its epoch; the zero Target if they do not.
	agreement evolve.Target
	// stored are the encodings that objects may be stored in.
	stored []agree.Encoding
	// silenced says that a server which did not report has gone, and that the controllers wait, or have waited, for its
	// last writes before they begin a migration.
	silenced bool
	// unserved says that no server serves the resource, for example after a rollback: all report, and none this one, or
	// concord controllers asked all.
	unserved bool
	// unlooked is how long nobody has looked at the resource to write its StorageState; 0 if there is none.
	unlooked time.Duration
	// moved is whether the definition stores another version than the StorageState says, where no server reports: nobody
	// has looked at it since.
	moved bool
}

func indexed(o Observed) *index {
	x := &index{Observed: o, servers: servers.Of(o.Leases, o.Now, o.Renewals), of: map[schema.GroupResource]*resource{}, told: toldLast(o.Migrations)}
	x.stockAnswered = o.StorageVersionsUnserved && len(o.States) > 0 && len(storageversion.Reporting(o.Leases)) > 0
	for i := range o.StorageVersions {
		if gr, err := storageversion.GroupResource(o.StorageVersions[i].Name); err == nil {
			x.get(gr).version = &o.StorageVersions[i]
		}
	}
	for i := range o.States {
		s := &o.States[i]
		r := x.get(schema.GroupResource(s.Spec.Resource))
		r.state, r.unlooked = s, x.Now.Sub(s.Status.LastHeartbeatTime.Time)
	}
	for i := range o.CRDs {
		x.get(migrationv1alpha1.ResourceOf(&o.CRDs[i])).crd = &o.CRDs[i]
	}
	for i := range o.Migrations {
		m := &o.Migrations[i]
		r := x.get(migrationv1alpha1.Resource(m))
		r.migrations = append(r.migrations, m)
		if migrationv1alpha1.Final(m) || m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == "" {
			continue
		}
		if !x.interrupted(m) {
			x.claimed, x.migrates = append(x.claimed, m), true
		} else if x.Now.Sub(toldAt(m)) <= stalledAfter {
			x.migrates = true
		}
	}
	asked := servers.AllStock(x.servers) // a stock cluster
	silent := !asked && slices.ContainsFunc(x.servers, func(s servers.Server) bool { return s.Silence != "" })
	for _, r := range x.of {
		r.settle()
		r.unserved = r.gone() && !silent
		if r.changed() {
			x.move(r)
		}
	}
	return x
}

func (x *index) get(gr schema.GroupResource) *resource {
	if x.of[gr] == nil {
		x.of[gr] = &resource{GroupResource: gr}
	}
	return x.of[gr]
}

// settle computes the fields that follow from the objects that were read.
func (r *resource) settle() {
	slices.SortStableFunc(r.migrations, func(a, b *migrationv1alpha1.StorageVersionMigration) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	var state *evolve.State
	if r.state != nil {
		view := migrationv1alpha1.ViewState(r.state)
		state = &view
	}
	if r.version == nil {
		if state != nil {
			r.stored = state.Stored
			if state.Current != evolve.Unknown {
				r.common = state.Current
			}
		}
		return
	}
	r.reports = storageversion.Reports(r.version)
	if common, agreed := storageversion.AgreementOn(r.version, r.reports); agreed {
		r.common = common
	}
	sv, err := storageversion.View(r.version)
	if err != nil {
		r.stored = []agree.Encoding{evolve.Unknown}
		return
	}
	r.stored = evolve.StoredSet(state, sv)
	r.agreement, _ = sv.Agreement()
	_, r.silenced = evolve.Silenced(evolve.Observation{State: state, StorageVersion: sv})
}

// changed reports whether the StorageState says that it does not account for the definition as it is. The definition's
// metadata are enough for that.
func (r *resource) changed() bool {
	if r.crd == nil || r.state == nil || r.isDeleted() {
		return false
	}
	seen := r.state.Annotations[migrationv1alpha1.DefinitionAnnotation]
	return seen != "" && seen != string(observed.RevisionOf(string(r.crd.UID), r.crd.Generation))
}

// move takes note of a definition that stores another version than the StorageState says, where no server reports.
func (x *index) move(r *resource) {
	if !x.stockAnswered && r.version == nil && r.common != "" && r.common.Plain() != r.target().Plain() {
		r.moved, r.common = true, ""
	}
}

// gone says whether no server reports the resource any more.
func (r *resource) gone() bool {
	return r.version == nil && r.state != nil && r.state.Status.Message == evolve.Gone
}

// unreported reports whether nothing says how the resource is stored, now or lately: no StorageVersion, and no
// StorageState other than one of a resource that is gone. The resource is known from a migration that somebody asked
// for, or from before.
func (r *resource) unreported() bool {
	return r.version == nil && (r.state == nil || r.gone())
}

// unreached reports whether an aggregated API server stores the resource and serves it as none of its own, but for
// example as a subresource of another one: migrations, which go through the API, do not reach its objects.
func (r *resource) unreached() bool {
	return r.state == nil && len(r.reports) > 0 && storageversion.IsAggregated(r.version) &&
		!slices.ContainsFunc(r.reports, func(report agree.Report) bool { return len(report.Served) > 0 })
}

// unseen reports whether the resource has a CustomResourceDefinition about whose storage nothing is known yet.
func (r *resource) unseen() bool {
	return r.crd != nil && r.state == nil && len(r.reports) == 0
}

// settled reports whether every object is in the encoding that all servers agree on.
func (r *resource) settled() bool {
	return r.common != "" && len(r.stored) == 1 && r.stored[0] == r.common
}

// counts reports whether servers store the resource now, and not only in the past.
func (r *resource) counts() bool {
	return len(r.reports) > 0 || r.version == nil && r.state != nil && !r.unserved
}

// sorted are all resources, by group and name.
func (x *index) sorted() []*resource {
	return slices.SortedFunc(maps.Values(x.of), func(a, b *resource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
}

// server finds a server by the name that its reports have; false if it has no Lease.
func (x *index) server(id agree.ServerID) (servers.Server, bool) {
	i := slices.IndexFunc(x.servers, func(s servers.Server) bool { return s.ID == string(id) })
	if i < 0 {
		return servers.Server{ID: string(id)}, false
	}
	return x.servers[i], true
}
