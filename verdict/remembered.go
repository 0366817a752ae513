package verdict

import (
	"maps"
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
)

// Cluster has the objects that were read from a live cluster, each kind once, the StorageStates before the
// StorageVersions. A kind that the cluster does not have has no objects.
type Cluster struct {
	States      []migrationv1alpha1.StorageState
	Versions    []apiserverinternalv1alpha1.StorageVersion
	Migrations  []migrationv1alpha1.StorageVersionMigration
	Definitions map[schema.GroupResource]*Definition
	// Leases are the identity Leases. They show Concord servers even if the server that answered serves no
	// StorageVersions.
	Leases []coordinationv1.Lease
	// Now is the time of the server that was asked: Leases are judged by it.
	Now time.Time
	// Unserved says that the server that answered serves no StorageVersions.
	Unserved bool
}

// Stored returns the encodings in which each resource may be stored according to the cluster's records, without a
// census, sorted by group and resource. Resources of aggregated API servers are left out. known are resources to
// include even if nothing is recorded about them.
func (c Cluster) Stored(known []schema.GroupResource) []compat.Stored {
	sets, evidence := c.sets(), Evidence(c.Migrations)
	why := noReports
	if c.Unserved && c.reporterLives() {
		why = noConcord
	}
	var all []compat.Stored
	for _, gr := range Resources(known, sets.Here(), slices.Collect(maps.Keys(c.Definitions))) {
		s := sets.inCluster(gr, why)
		s.Undecodable = evidence[gr]
		all = append(all, Defined(s, c.Definitions))
	}
	return all
}

// reporterLives says whether a server lives that reports: by its Lease, which it renews.
func (c Cluster) reporterLives() bool {
	return slices.ContainsFunc(storageversion.Reporting(c.Leases), func(l coordinationv1.Lease) bool {
		renewed, lasts := l.Spec.RenewTime, l.Spec.LeaseDurationSeconds
		return renewed == nil || lasts == nil || c.Now.Before(renewed.Add(time.Duration(*lasts)*time.Second))
	})
}

// Resources returns all resources about which something is known, sorted by group and resource.
func Resources(lists ...[]schema.GroupResource) []schema.GroupResource {
	all := slices.Concat(lists...)
	slices.SortFunc(all, CompareResources)
	return slices.Compact(all)
}

func (c Cluster) sets() Sets {
	sets := Sets{
		States:   map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		Versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{},
	}
	for i := range c.States {
		sets.States[schema.ParseGroupResource(c.States[i].Name)] = &c.States[i]
	}
	for i := range c.Versions {
		if gr, err := storageversion.GroupResource(c.Versions[i].Name); err == nil {
			sets.Versions[gr] = &c.Versions[i]
		}
	}
	return sets
}

// inCluster returns a resource's stored set. If both kinds of objects were listed, a resource that has neither was
// never reported, and no server writes before it reports. A missing list proves nothing; why explains why there are no
// StorageVersions.
func (s Sets) inCluster(gr schema.GroupResource, why string) compat.Stored {
	_, state := s.States[gr]
	_, version := s.Versions[gr]
	if len(s.States) > 0 && len(s.Versions) > 0 && !state && !version {
		return compat.Stored{Resource: gr, Why: "no server of this cluster has reported that it stores it"}
	}
	stored := s.Of(gr)
	if stored.Unknown && len(s.Versions) == 0 {
		stored.Why = why
	}
	return stored
}

const (
	// noReports is why nothing is sure of a cluster of stock servers.
	noReports = "no server of this cluster reports what it stores, as Concord's do"
	// noConcord is why nothing is sure where a server without StorageVersions was asked of a cluster in which others live.
	noConcord = "the kube-apiserver that answered serves no StorageVersions (it is one without Concord, or its gate StorageVersionAPI is off), so that it does not tell what servers report"
)

// Defined adds what the resource's definition says; nil stands for a definition that cannot be read.
func Defined(s compat.Stored, definitions map[schema.GroupResource]*Definition) compat.Stored {
	d, ok := definitions[s.Resource]
	switch {
	case ok && d == nil:
		s.Unknown, s.Why = true, "its CustomResourceDefinition cannot be read"
	case ok:
		s.CRD = d.Stored()
	}
	return s
}
