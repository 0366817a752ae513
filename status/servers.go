package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/duration"

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
	// State is serving, starting, dead, unrenewed, stock or silent.
	State string `json:"state"`
	// Aggregated says that the server is not part of the control plane, but serves an aggregated API.
	Aggregated bool `json:"aggregated,omitempty"`
	// RenewedSecondsAgo is how long ago the server renewed its Lease, if that is known.
	RenewedSecondsAgo int64 `json:"renewedSecondsAgo"`

	silence agree.Silence
	// renewed is how long ago its Lease was renewed.
	renewed time.Duration
	// lasts is how long its Lease does.
	lasts time.Duration
	// last says that no live Concord server exists that would delete its Lease.
	last bool
	// late says that other servers renew their Leases, and this one, which may live, does not; ahead says that the
	// time in its Lease is in the future.
	late, ahead bool
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

// serversOf returns the servers of the identity Leases, those with problems first.
func serversOf(o Observed) []Server {
	var servers []Server
	for _, lease := range storageversion.Servers(slices.Clone(o.Leases)) {
		servers = append(servers, serverOf(&lease, o.Now, o.Renewals[lease.Name]))
	}
	if !slices.ContainsFunc(servers, func(s Server) bool { return s.silence != agree.Stock }) {
		// Nobody reports here: in a stock cluster that is as it should be.
		for i := range servers {
			if servers[i].State == Stock {
				servers[i].State = Serving
			}
		}
	}
	none := noneRenews(servers)
	for i := range servers {
		if none {
			servers[i].State = Unrenewed
		}
		servers[i].late = !none && servers[i].State == Unrenewed
	}
	if !slices.ContainsFunc(servers, Server.answers) {
		for i := range servers {
			servers[i].last = true
		}
	}
	order := []string{Dead, Unrenewed, Stock, Silent, Starting, Serving}
	slices.SortFunc(servers, func(a, b Server) int {
		return cmp.Or(slices.Index(order, a.State)-slices.Index(order, b.State), strings.Compare(a.ID, b.ID))
	})
	return servers
}

// noneRenews reports whether no server has renewed its Lease in time, not even the one that answers. That one is not a
// server of an aggregated API, so it is false if there are only such servers.
func noneRenews(servers []Server) bool {
	stale := func(s Server) bool { return s.State == Dead || s.State == Unrenewed }
	return slices.ContainsFunc(servers, func(s Server) bool { return !s.Aggregated }) &&
		!slices.ContainsFunc(servers, func(s Server) bool { return !stale(s) })
}

// answers reports whether the server seems to live and would show the servers' reports.
func (s Server) answers() bool { return s.silence == "" && !s.Aggregated && s.State != Dead }

// askedStock is the problem that a kube-apiserver without StorageVersions has answered in a cluster that has other
// servers; the Kind is empty if that is not so, or not known.
func (x *index) askedStock() Problem {
	if !x.stockAnswered || len(x.Unread) > 0 {
		return Problem{}
	}
	var others []string
	for _, s := range x.servers {
		if s.answers() {
			others = append(others, s.ID)
		}
	}
	p := Problem{
		Kind: StockAnswered,
		Text: "the kube-apiserver that answered serves no StorageVersions (it is one without Concord, or its gate StorageVersionAPI is off), so that what servers report is not known here",
		Do:   "none of Concord's servers seems to live that could be asked: start one or, if none is to run here again, delete the Leases that they have left",
	}
	if len(others) > 0 {
		p.Do = "ask one of Concord's, by --server: " + some(others)
	}
	return p
}

// unready is the problem that the server that answers is not ready; the Kind is empty if it is ready, or if unrenewed
// already names its checks.
func (x *index) unready() Problem {
	if len(x.FailedChecks) == 0 || noneRenews(x.servers) {
		return Problem{}
	}
	p := Problem{
		Kind: NotReady,
		Text: "the kube-apiserver that answered is not ready: its /readyz fails: " + strings.Join(x.FailedChecks, ", "),
		Do:   "see its log, and kubectl get --raw '/readyz?verbose', which the others answer by --server",
	}
	return x.restored(p)
}

// restored is the problem p, or the reason of it that etcd went back to an older revision.
func (x *index) restored(p Problem) Problem {
	if !slices.Contains(x.FailedChecks, "etcd-restored") {
		return p
	}
	p.Text = fmt.Sprintf("etcd was restored from a backup under running servers, and takes no writes from them (/readyz fails: %s)", strings.Join(x.FailedChecks, ", "))
	p.Do = "restart all API servers: their caches are of the time before (docs/faults.md). If nobody restored it, its members differ: see etcdctl endpoint status --cluster, and mend etcd first"
	return p
}

// unrenewed is the problem that no server renews its Lease; the Kind is empty if one does. If none does, do not take any
// server for dead: without its Lease a live server would accept no deletes either, and deletes make room in etcd.
func (x *index) unrenewed() Problem {
	if !noneRenews(x.servers) {
		return Problem{}
	}
	least := slices.MinFunc(x.servers, func(a, b Server) int { return cmp.Compare(a.renewed, b.renewed) }).renewed
	p := Problem{
		Kind: NoneRenews,
		Text: fmt.Sprintf("no server has renewed its Lease for %s, although one answers: etcd takes no writes, or every server but one that has just started is gone", duration.HumanDuration(least)),
		Do:   "delete no Lease and restart no server; kubectl get --raw '/readyz?verbose' may say why. docs/faults.md tells of an etcd that is away or out of space",
	}
	if len(x.FailedChecks) > 0 {
		p.Text += "; its /readyz fails: " + strings.Join(x.FailedChecks, ", ")
	}
	if slices.Contains(x.FailedChecks, "etcd-space") {
		p.Text = fmt.Sprintf("etcd is out of space (alarm NOSPACE; /readyz fails: %s): no server has renewed its Lease for %s", strings.Join(x.FailedChecks, ", "), duration.HumanDuration(least))
		p.Do = "delete no Lease and restart no server: objects can be deleted through those that run. Then etcdctl compact and defrag, or a larger quota, and etcdctl alarm disarm (docs/runbooks/ConcordEtcdNoSpace.md)"
	}
	return x.restored(p)
}

func serverOf(lease *coordinationv1.Lease, now time.Time, seen Renewal) Server {
	s := Server{
		ID:           lease.Name,
		Release:      lease.Annotations[storageversion.BinaryVersionAnnotation],
		Emulates:     lease.Annotations[storageversion.EmulationVersionAnnotation],
		ReadableFrom: lease.Annotations[storageversion.MinCompatibilityVersionAnnotation],
		State:        Serving,
		Aggregated:   storageversion.IsAggregated(lease),
		silence:      storageversion.SilenceOf(lease),
	}
	s.lasts = lastsFor(lease)
	s.renewed = max(0, age(lease, now), seen.For.Duration)
	if seen.Renewed {
		s.renewed = seen.For.Duration
	}
	s.renewed = s.renewed.Truncate(time.Second)
	s.RenewedSecondsAgo = int64(s.renewed / time.Second)
	watched := seen.For.Duration >= watchFor(lease, s.lasts)
	s.ahead = !seen.Renewed && age(lease, now) < -s.lasts/3
	switch {
	case s.lasts > 0 && s.renewed >= s.lasts && watched:
		s.State = Dead
	case s.silence == "" && s.lasts > 0 && (s.renewed > s.lasts*2/3 || s.ahead && watched):
		s.State = Unrenewed
	case s.silence == agree.Stock:
		s.State = Stock
	case s.silence != "":
		s.State = Silent
	case lease.Annotations[storageversion.ReportedAnnotation] != "true":
		s.State = Starting
	}
	return s
}

// versions returns the versions on which the server's encodings depend.
func (s Server) versions() string {
	switch {
	case s.Release == "":
		return "kube-apiserver without Concord"
	case s.Emulates == s.Release || s.Emulates == "":
		return s.Release
	}
	return s.Release + " as " + s.Emulates
}

// problem returns the problem that the server causes for others; the Kind is empty if it causes none. waits are the
// resources that wait for it.
func (s Server) problem(waits []string) Problem {
	deleted := fmt.Sprintf("kubectl delete lease -n %s %s", storageversion.IdentityNamespace, s.ID)
	p := Problem{Server: s.ID, Resources: waits}
	switch {
	case s.State == Dead && s.silence == agree.Stock:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s, a kube-apiserver without Concord, has not renewed its Lease for %s: it seems to be dead, and its Lease lives for an hour", s.ID, duration.HumanDuration(s.renewed))
		p.Do, p.Run = "make sure that its process has ended, then", deleted
	case s.State == Dead && s.last:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is dead, paused or cut off, and no server of Concord seems to live that would delete its Lease", s.ID, s.versions(), duration.HumanDuration(s.renewed))
		p.Do, p.Run = "start it again or, if it is gone for good", deleted
	case s.State == Dead:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is dead, paused or cut off, and what it reported still counts", s.ID, s.versions(), duration.HumanDuration(s.renewed))
		p.Do, p.Run = fmt.Sprintf("wait: the other servers delete its Lease when they have seen it unrenewed for %s; or, if it is gone for good", duration.HumanDuration(s.lasts)), deleted
	case s.State == Stock:
		p.Kind = StockServer
		p.Text = fmt.Sprintf("%s is a kube-apiserver without Concord: it does not report what it writes, so that nobody can agree while it runs", s.ID)
		p.Do, p.Run = "replace it by concord kube-apiserver, or stop it and then", deleted
	case s.State == Silent:
		p.Kind = SilentServer
		p.Text = fmt.Sprintf("%s (%s) does not report what it writes: its feature gate StorageVersionAPI is off", s.ID, s.versions())
		p.Do = "start it without --feature-gates=StorageVersionAPI=false, or stop it"
	case s.late:
		p.Kind = LateServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is busy, paused, cut off or has just died, and what it reported counts", s.ID, s.versions(), duration.HumanDuration(s.renewed))
		if s.ahead {
			p.Text = fmt.Sprintf("%s (%s) did not renew its Lease in the %s in which it was watched, and its clock is ahead of that of the server which answered: it is busy, paused, cut off or has died, and what it reported counts", s.ID, s.versions(), duration.HumanDuration(s.renewed))
		}
		p.Do = fmt.Sprintf("look again: the other servers delete its Lease when they have seen it unrenewed for %s", duration.HumanDuration(s.lasts))
	default:
		return p
	}
	if n := len(waits); n > 0 {
		p.Text += fmt.Sprintf("; %s %s for it", count(n, "resource"), plural(n, "waits", "wait"))
	}
	return p
}
