package status

import "slices"

// Row shows how one resource is stored: the encoding that each server writes, and the encodings that may be in etcd.
type Row struct {
	Resource string `json:"resource"`
	// State is how well it is.
	State RowState `json:"state"`
	// Written is the encoding that each server reports, by the server's ID; Unknown for a server that has not reported
	// yet. In a stock cluster, where no server reports, it is empty.
	Written map[string]string `json:"written,omitempty"`
	// Agreed is the encoding that all servers agree on; empty where they do not.
	Agreed string `json:"agreed,omitempty"`
	// Stored is the stored set.
	Stored []string `json:"stored,omitempty"`
	// Problems are the kinds of its problems.
	Problems []Kind `json:"problems,omitempty"`
}

// RowState is how well a resource is.
type RowState string

// The states of a Row, the most urgent first.
const (
	// Bad: something keeps it from being in one version.
	Bad RowState = "bad"
	// Halted: somebody has paused or postponed it, or it waits.
	Halted RowState = "halted"
	// Moves: a migration of it has not ended.
	Moves RowState = "moving"
	// Unsettled: objects may be in several versions, and no migration has been made yet.
	Unsettled RowState = "unsettled"
	// Unknown: there is a CustomResourceDefinition, and nobody has looked yet at how its objects are stored.
	Unknown RowState = "unknown"
	// Settled: every object is in the version that all servers agree on.
	Settled RowState = "settled"
	// Past: no server stores it any more.
	Past RowState = "past"
)

var rowStates = []RowState{Bad, Halted, Moves, Unsettled, Unknown, Settled, Past}

// halts are the kinds of problems that somebody wants, or that pass by themselves.
var halts = []Kind{Deleting, Paused, Waiting, Held}

// row is the resource's, with the problems that were found of it.
func (x *index) row(r *resource, problems []Problem) Row {
	row := Row{Resource: r.String(), Agreed: string(r.common)}
	for _, e := range r.stored {
		row.Stored = append(row.Stored, string(e))
	}
	for _, report := range r.reports {
		if row.Written == nil {
			row.Written = map[string]string{}
		}
		row.Written[string(report.Server)] = string(report.Encoding)
	}
	for _, p := range problems {
		if !slices.Contains(row.Problems, p.Kind) {
			row.Problems = append(row.Problems, p.Kind)
		}
	}
	for _, server := range x.waitsFor(r) {
		if p := problemOf(server, nil); p.Kind != "" && !slices.Contains(row.Problems, p.Kind) {
			row.Problems = append(row.Problems, p.Kind)
		}
	}
	slices.SortFunc(row.Problems, func(a, b Kind) int { return slices.Index(urgency, a) - slices.Index(urgency, b) })
	switch {
	case slices.ContainsFunc(row.Problems, func(k Kind) bool { return !slices.Contains(halts, k) }):
		row.State = Bad
	case len(row.Problems) > 0:
		row.State = Halted
	case len(r.live()) > 0:
		row.State = Moves
	case r.unseen():
		row.State = Unknown
	case !r.counts():
		row.State = Past
	case r.settled():
		row.State = Settled
	default:
		row.State = Unsettled
	}
	return row
}

// Rank orders states, the most urgent first.
func (s RowState) Rank() int { return slices.Index(rowStates, s) }
