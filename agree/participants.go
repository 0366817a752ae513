package agree

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Silence is why a server never reports, in words for people; empty for one that does.
type Silence string

const (
	// GateOff is the Silence of a Concord server whose gate StorageVersionAPI is off.
	GateOff Silence = "feature gate StorageVersionAPI off"
	// Stock is the Silence of a kube-apiserver that knows nothing of the protocol.
	Stock Silence = "kube-apiserver without Concord"
)

// Participants are the servers whose identity Lease exists. The zero value has none.
//
// A silent one never reports (DESIGN 3.8), and writes in an encoding that the others do not
// know. They report Unknown in its stead, in every StorageVersion: so there is no agreement
// while its Lease exists, the epoch rises when it comes and goes, and stored sets gain
// Unknown.
// Invariant: reporting and silent are disjoint.
type Participants struct {
	reporting sets.Set[ServerID]
	silent    map[ServerID]Silence
}

// NewParticipants returns those that report, or are about to, and those that never do.
func NewParticipants(reporting []ServerID, silent map[ServerID]Silence) Participants {
	return Participants{reporting: sets.New(reporting...), silent: silent}
}

// Has says whether the server participates.
func (p Participants) Has(id ServerID) bool {
	_, silent := p.silent[id]
	return silent || p.reporting.Has(id)
}

// Silent returns those that never report, sorted.
func (p Participants) Silent() []ServerID { return slices.Sorted(maps.Keys(p.silent)) }

// Reporting counts those that report, or are about to.
func (p Participants) Reporting() int { return p.reporting.Len() }

// silence is the report that others make for a silent server. Its version only satisfies
// the invariant of Report: nobody knows what the server decodes, and nothing is served.
func (p Participants) silence(id ServerID) Report {
	return Report{Server: id, Encoding: Unknown, Decodable: []string{string(Unknown)}, Silence: p.silent[id]}
}
