package observed

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/concord-dev/concord/agree"
)

// Lingers is how long a process without a Lease that does not answer is waited for, because a host that is gone cannot
// be distinguished from a silent one. A process also counts as several for this long after its Lease showed two
// addresses.
const Lingers = 10 * time.Minute

// Drains is for how long a process is waited for that has no Lease any more, and whose host refuses connections: a
// kube-apiserver that ends closes its port, and then finishes the requests that it has, for at most its
// --request-timeout, 60 s (before that, for --shutdown-delay-duration, it answers still).
const Drains = time.Minute

// Places remembers where processes were reached. The zero value knows none.
//
// Since 1.37 a kube-apiserver that shuts down deletes its Lease first, and serves on for a while. So a process whose
// Lease is gone stays among the replicas, at its last address, until it can no longer be there.
//
// kube-apiservers with the same hostname share a Lease: the holder stays the same, and the address is that of the one
// that renewed it last.
type Places struct {
	known map[Process]*place
}

type place struct {
	Replica
	// told holds the addresses of the process's Lease, with the time when each was last seen.
	told map[string]time.Time
	// gone is since when it has no Lease, refused since when its host refuses connections, too; zero while that
	// is not so.
	gone, refused time.Time
}

// Take records the replicas that have Leases now, and returns them together with those that have to be asked
// nevertheless, by name.
func (p *Places) Take(replicas []Replica, now time.Time) []Replica {
	if p.known == nil {
		p.known = map[Process]*place{}
	}
	all, taken := slices.Clone(replicas), map[string]bool{"": true}
	here, unplaced := map[Process]bool{}, map[agree.ServerID]bool{}
	for i, r := range all {
		k := p.known[r.Process]
		if k == nil {
			k = &place{told: map[string]time.Time{}}
			p.known[r.Process] = k
		}
		if r.Address != "" {
			k.told[r.Address] = now
		} else { // it may be anywhere, and most likely is where its Lease was before
			unplaced[r.Lease] = true
		}
		k.Replica, k.gone, k.refused = r, time.Time{}, time.Time{}
		here[r.Process], taken[r.Address] = true, true
		all[i] = k.replica(now)
	}
	for process, k := range p.known {
		r := k.replica(now)
		switch {
		case here[process]:
		case len(k.told) < 2 && (taken[k.Address] || unplaced[process.Lease]): // another process has come in its place
			delete(p.known, process)
		default:
			if k.gone.IsZero() {
				k.gone = now
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Or(cmp.Compare(a.Lease, b.Lease), cmp.Compare(a.Holder, b.Holder)) })
	return all
}

// replica returns the replica as it should be asked: without an address if its Lease has shown several.
func (k *place) replica(now time.Time) Replica {
	maps.DeleteFunc(k.told, func(_ string, at time.Time) bool { return now.Sub(at) >= Lingers })
	r := k.Replica
	if len(k.told) > 1 {
		r.Address = ""
		r.Nowhere = "has told several addresses, " + strings.Join(slices.Sorted(maps.Keys(k.told)), " and ") +
			", and nobody knows how many share its Lease: give each host of a kube-apiserver a name of its own"
	}
	return r
}

// Missed notes that a replica did not answer. One without a Lease is forgotten when its host has refused
// connections for Drains, and at last when it says nothing.
func (p *Places) Missed(process Process, refused bool, now time.Time) {
	k := p.known[process]
	if k == nil || k.gone.IsZero() {
		return
	}
	if !refused {
		k.refused = time.Time{}
	} else if k.refused.IsZero() {
		k.refused = now
	}
	if refused && now.Sub(k.refused) >= Drains || now.Sub(k.gone) >= Lingers {
		delete(p.known, process)
	}
}

// Answered notes that a replica answered: where its host refused a connection before, its port was not closed.
func (p *Places) Answered(process Process) {
	if k := p.known[process]; k != nil {
		k.refused = time.Time{}
	}
}

// Unleased stands for kube-apiservers that have no Lease.
const Unleased agree.ServerID = "a kube-apiserver without a Lease"

// Counted adds Unleased where there are more endpoints of kube-apiservers than replicas.
func Counted(replicas []Replica, endpoints int) []Replica {
	if endpoints <= len(replicas) {
		return replicas
	}
	return append(slices.Clone(replicas), Replica{Process: Process{Lease: Unleased}, Nowhere: fmt.Sprintf("cannot be asked: the Service default/kubernetes has %d endpoints, and %d "+
		"kube-apiservers have an identity Lease (feature gate APIServerIdentity); if there are no more, start with --best-effort (an operator: Options.BestEffort)", endpoints, len(replicas))})
}
