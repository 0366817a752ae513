package agree

import "k8s.io/apimachinery/pkg/util/sets"

// Participants are the servers whose identity Lease exists. The zero value has none.
//
// A silent one has the gate StorageVersionAPI off (DESIGN 3.8): it never reports, and
// writes in an encoding that the others do not know. They report Unknown in its stead, in
// every StorageVersion: so there is no agreement while it lives, the epoch rises when it
// comes and goes, and stored sets gain Unknown.
// Invariant: reporting and silent are disjoint.
type Participants struct {
	reporting, silent sets.Set[ServerID]
}

// NewParticipants returns those that report, or are about to, and those that never do.
func NewParticipants(reporting, silent []ServerID) Participants {
	p := Participants{reporting: sets.New(reporting...)}
	if len(silent) > 0 {
		p.silent = sets.New(silent...)
	}
	return p
}

// Has says whether the server participates.
func (p Participants) Has(id ServerID) bool { return p.reporting.Has(id) || p.silent.Has(id) }

// Reporting counts those that report, or are about to.
func (p Participants) Reporting() int { return p.reporting.Len() }

// silence is the report that others make for a silent server. Its version only satisfies
// the invariant of Report: nobody knows what the server decodes, and nothing is served.
func silence(id ServerID) Report {
	return Report{Server: id, Encoding: Unknown, Decodable: []string{string(Unknown)}}
}
