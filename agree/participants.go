package agree

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Silence explains to people why a server does not report; empty if it reports.
type Silence string

const (
	// GateOff is the Silence of a Concord server whose gate StorageVersionAPI is off.
	GateOff Silence = "feature gate StorageVersionAPI off"
	// Stock is the Silence of a kube-apiserver that knows nothing of the protocol.
	Stock Silence = "kube-apiserver without Concord"
	// Owing is the Silence of a server that holds permissions and whose report is lost.
	Owing Silence = "aggregated API server that has not reported again"
)

// Participants are the servers whose identity Lease exists. The zero value has none.
//
// A silent one never reports, and writes in an encoding that the others do not
// know. They report Unknown in its stead, in every StorageVersion: so there is no agreement
// while its Lease exists, the epoch rises when it comes and goes, and stored sets gain
// Unknown.
// An aggregated API server writes to an etcd of its own, where no fence compares what is reported
// here: it may go on writing when its report here is lost, for as long as it is cut off and does
// not hear of that. So it tells on its Lease which resources it writes, and that it has
// reported them, and it writes none before that stands on its Lease (Holds). Whoever of those
// has no report of a resource owes it: the others report Unknown in its stead, in that
// StorageVersion alone, until it reports again or its Lease is gone. That is
//   - safe: no write without that word on the Lease, and without the report seen in place after it;
//     and with the word no agreement without the report. A word that came after the others have
//     read the participants is noticed by the collector, which settles the reports whenever a Lease
//     comes to say so;
//   - live: a server names the resources that it reports and no others, whatever else its group
//     has in other releases, and one that is starting owes nothing; whoever can still
//     reach this cluster reports again by itself, and the Lease of one that cannot goes when
//     its own kind buries it.
//
// Invariants: reporting and silent are disjoint; those that hold and owe are reporting.
type Participants struct {
	reporting sets.Set[ServerID]
	silent    map[ServerID]Silence
	holding   map[ServerID]sets.Set[schema.GroupResource]
	owing     sets.Set[ServerID] // see For
}

// NewParticipants returns the participants: servers that report or are about to, and silent servers that never do.
func NewParticipants(reporting []ServerID, silent map[ServerID]Silence) Participants {
	return Participants{reporting: sets.New(reporting...), silent: silent}
}

// Holds returns the participants in which one reporting server holds the permission to write these resources, whether
// its reports about them stand or not. p is not changed.
func (p Participants) Holds(id ServerID, resources ...schema.GroupResource) Participants {
	holding := maps.Clone(p.holding)
	if holding == nil {
		holding = map[ServerID]sets.Set[schema.GroupResource]{}
	}
	holding[id] = sets.New(resources...)
	p.holding = holding
	return p
}

// For returns the participants as Merge and Settle need them for the reports of one resource: servers that hold the
// permission to write it owe a report.
func (p Participants) For(gr schema.GroupResource) Participants {
	p.owing = nil
	for id, resources := range p.holding {
		if resources.Has(gr) {
			p.owing = p.owing.Clone().Insert(id)
		}
	}
	return p
}

// Has says whether the server participates.
func (p Participants) Has(id ServerID) bool {
	_, silent := p.silent[id]
	return silent || p.reporting.Has(id)
}

// Silent returns the servers that never report, sorted.
func (p Participants) Silent() []ServerID { return slices.Sorted(maps.Keys(p.silent)) }

// Reporting counts the servers that report, or are about to.
func (p Participants) Reporting() int { return p.reporting.Len() }

// silence returns the report that other servers make for a server that is silent or owes a report. Its version only
// satisfies the invariant of Report: it is not known what the server decodes, and nothing is served.
func (p Participants) silence(id ServerID) Report {
	why := p.silent[id]
	if p.owing.Has(id) {
		why = Owing
	}
	return Report{Server: id, Encoding: Unknown, Decodable: []string{string(Unknown)}, Silence: why}
}
