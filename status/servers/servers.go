// Package servers judges API servers by their identity Leases: which there are, and which of them live.
package servers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// Server is one API server, by its identity Lease.
type Server struct {
	ID string `json:"id"`
	// Release is the release of the binary. Emulates and ReadableFrom are the emulation version and the min
	// compatibility version. They are empty for a kube-apiserver without Concord.
	Release      string `json:"release,omitempty"`
	Emulates     string `json:"emulates,omitempty"`
	ReadableFrom string `json:"readableFrom,omitempty"`
	// Build is the build of Concord, empty if the server does not tell it.
	Build string `json:"build,omitempty"`
	// State is serving, starting, dead, unrenewed, stock or silent.
	State string `json:"state"`
	// Aggregated says that the server is not part of the control plane, but serves an aggregated API.
	Aggregated bool `json:"aggregated,omitempty"`
	// RenewedSecondsAgo is how long ago the server renewed its Lease, if that is known.
	RenewedSecondsAgo int64 `json:"renewedSecondsAgo"`

	// Silence says why the server does not report; empty if it does.
	Silence agree.Silence `json:"-"`
	// Renewed is how long ago its Lease was renewed.
	Renewed time.Duration `json:"-"`
	// Lasts is how long its Lease does.
	Lasts time.Duration `json:"-"`
	// Last says that no live Concord server exists that would delete its Lease.
	Last bool `json:"-"`
	// Late says that other servers renew their Leases, and this one, which may live, does not.
	Late bool `json:"-"`
	// Ahead says that the time in its Lease is in the future.
	Ahead bool `json:"-"`
}

// The states of a server.
const (
	// Serving: the server renews its Lease and has reported. Only its /readyz shows whether it is ready.
	Serving  = "serving"
	Starting = "starting"
	Dead     = "dead"
	// Unrenewed: it has missed a renewal of its Lease, and may live; or its Lease is as old as a dead server's,
	// but so are all, and one server answers.
	Unrenewed = "unrenewed"
	Stock     = "stock"
	Silent    = "silent"
)

// AllStock says that no server of the control plane is Concord's. The Lease of an aggregated API server may be of an earlier
// time.
func AllStock(servers []Server) bool {
	return !slices.ContainsFunc(servers, func(s Server) bool { return s.Silence != agree.Stock && !s.Aggregated })
}

// Of returns the servers that have an identity Lease, those with problems first, as they are at a time of the API
// server. Renewals are those that a Watch has seen, by the name of the Lease.
func Of(leases []coordinationv1.Lease, now time.Time, renewals map[string]Renewal) []Server {
	var servers []Server
	for _, lease := range storageversion.Servers(slices.Clone(leases)) {
		servers = append(servers, One(&lease, now, renewals[lease.Name]))
	}
	if AllStock(servers) {
		// Nobody reports here: in a stock cluster that is as it should be.
		for i := range servers {
			if servers[i].State == Stock {
				servers[i].State = Serving
			}
		}
	}
	none := NoneRenews(servers)
	for i := range servers {
		if none {
			servers[i].State = Unrenewed
		}
		servers[i].Late = !none && servers[i].State == Unrenewed
	}
	if !slices.ContainsFunc(servers, Server.Answers) {
		for i := range servers {
			servers[i].Last = true
		}
	}
	order := []string{Dead, Unrenewed, Stock, Silent, Starting, Serving}
	slices.SortFunc(servers, func(a, b Server) int {
		return cmp.Or(slices.Index(order, a.State)-slices.Index(order, b.State), strings.Compare(a.ID, b.ID))
	})
	return servers
}

// NoneRenews reports whether no server has renewed its Lease in time, not even the one that answers. That one is not a
// server of an aggregated API, so it is false if there are only such servers.
func NoneRenews(servers []Server) bool {
	stale := func(s Server) bool { return s.State == Dead || s.State == Unrenewed }
	return slices.ContainsFunc(servers, func(s Server) bool { return !s.Aggregated }) &&
		!slices.ContainsFunc(servers, func(s Server) bool { return !stale(s) })
}

// Answers reports whether the server seems to live and would show the servers' reports.
func (s Server) Answers() bool { return s.Silence == "" && !s.Aggregated && s.State != Dead }

// Controls says whether the server can run the controllers.
func (s Server) Controls() bool { return s.State == Serving && s.Silence == "" && !s.Aggregated }

// One returns the server of an identity Lease.
func One(lease *coordinationv1.Lease, now time.Time, seen Renewal) Server {
	s := Server{
		ID:           lease.Name,
		Release:      lease.Annotations[storageversion.BinaryVersionAnnotation],
		Emulates:     lease.Annotations[storageversion.EmulationVersionAnnotation],
		ReadableFrom: lease.Annotations[storageversion.MinCompatibilityVersionAnnotation],
		Build:        lease.Annotations[storageversion.BuildAnnotation],
		State:        Serving,
		Aggregated:   storageversion.IsAggregated(lease),
		Silence:      storageversion.SilenceOf(lease),
	}
	s.Lasts = lastsFor(lease)
	s.Renewed = max(0, age(lease, now), seen.For.Duration)
	if seen.Renewed {
		s.Renewed = seen.For.Duration
	}
	s.Renewed = s.Renewed.Truncate(time.Second)
	s.RenewedSecondsAgo = int64(s.Renewed / time.Second)
	watched := seen.For.Duration >= watchFor(lease, s.Lasts)
	s.Ahead = !seen.Renewed && age(lease, now) < -s.Lasts/3
	switch {
	case s.Lasts > 0 && s.Renewed >= s.Lasts && watched:
		s.State = Dead
	case s.Silence == "" && s.Lasts > 0 && (s.Renewed > s.Lasts*2/3 || s.Ahead && watched):
		s.State = Unrenewed
	case s.Silence == agree.Stock:
		s.State = Stock
	case s.Silence != "":
		s.State = Silent
	case lease.Annotations[storageversion.ReportedAnnotation] != "true":
		s.State = Starting
	}
	return s
}

// Versions returns the versions on which the server's encodings depend.
func (s Server) Versions() string {
	switch {
	case s.Release == "":
		return "kube-apiserver without Concord"
	case s.Emulates == s.Release || s.Emulates == "":
		return s.Release
	}
	return s.Release + " as " + s.Emulates
}
