package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
)

// askedStock is the problem that a kube-apiserver without StorageVersions has answered in a cluster that has other
// servers; the Kind is empty if that is not so, or not known.
func (x *index) askedStock() Problem {
	if !x.stockAnswered || len(x.Unread) > 0 {
		return Problem{}
	}
	var others []string
	for _, s := range x.servers {
		if s.Answers() {
			others = append(others, s.ID)
		}
	}
	p := Problem{
		Kind: StockAnswered,
		Text: "the kube-apiserver that answered serves no StorageVersions (it is one without Concord, or its gate StorageVersionAPI is off), so that what servers report is not known here",
		Do:   "none of Concord's servers seems to live that could be asked: start one or, if none is to run here again, delete the Leases that they have left",
	}
	if len(others) > 0 {
		p.Do = "give --server the address of one of Concord's: " + prose.Some(others)
	}
	return p
}

// unready is the problem that the server that answers is not ready; the Kind is empty if it is ready, or if unrenewed
// already names its checks.
func (x *index) unready() Problem {
	if len(x.FailedChecks) == 0 || servers.NoneRenews(x.servers) {
		return Problem{}
	}
	p := Problem{
		Kind: NotReady,
		Text: "the kube-apiserver that answered is not ready: its /readyz fails: " + strings.Join(x.FailedChecks, ", "),
		Do:   "see its log, and kubectl get --raw '/readyz?verbose', which the others answer by --server",
	}
	if slices.Contains(x.FailedChecks, outOfSpace) {
		p.Text = fmt.Sprintf("etcd is out of space (alarm NOSPACE; /readyz fails: %s): writes are refused", strings.Join(x.FailedChecks, ", "))
		p.Do = makeRoom
	}
	return x.restored(p)
}

const (
	// outOfSpace is the check of /readyz that fails while etcd's alarm NOSPACE is raised, and makeRoom what to do then.
	outOfSpace = "etcd-space"
	makeRoom   = "delete no Lease and restart no server: objects can be deleted through those that run. Then etcdctl compact and defrag, or a larger quota, and etcdctl alarm disarm (docs/runbooks/ConcordEtcdNoSpace.md)"
)

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
	if !servers.NoneRenews(x.servers) {
		return Problem{}
	}
	least := slices.MinFunc(x.servers, func(a, b servers.Server) int { return cmp.Compare(a.Renewed, b.Renewed) }).Renewed
	p := Problem{
		Kind: NoneRenews,
		Text: fmt.Sprintf("no server has renewed its Lease for %s, although one answers: etcd takes no writes, or every server but one that has just started is gone", duration.HumanDuration(least)),
		Do:   "delete no Lease and restart no server; kubectl get --raw '/readyz?verbose' may say why. docs/faults.md tells of an etcd that is away or out of space",
	}
	if len(x.FailedChecks) > 0 {
		p.Text += "; its /readyz fails: " + strings.Join(x.FailedChecks, ", ")
	}
	if slices.Contains(x.FailedChecks, outOfSpace) {
		p.Text = fmt.Sprintf("etcd is out of space (alarm NOSPACE; /readyz fails: %s): no server has renewed its Lease for %s", strings.Join(x.FailedChecks, ", "), duration.HumanDuration(least))
		p.Do = makeRoom
	}
	return x.restored(p)
}

// problemOf returns the problem that a server causes for others; the Kind is empty if it causes none. waits are the
// resources that wait for it.
func problemOf(s servers.Server, waits []string) Problem {
	deleted := fmt.Sprintf("kubectl delete lease -n %s %s", storageversion.IdentityNamespace, s.ID)
	p := Problem{Server: s.ID, Resources: waits}
	switch {
	case s.State == servers.Dead && s.Silence == agree.Stock:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s, a kube-apiserver without Concord, has not renewed its Lease for %s: it seems to be dead, and its Lease lives for an hour", s.ID, duration.HumanDuration(s.Renewed))
		p.Do, p.Run = "make sure that its process has ended, then", deleted
	case s.State == servers.Dead && s.Last:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is dead, paused or cut off, and no server of Concord seems to live that would delete its Lease", s.ID, s.Versions(), duration.HumanDuration(s.Renewed))
		p.Do, p.Run = "start it again or, if it is gone for good", deleted
	case s.State == servers.Dead:
		p.Kind = DeadServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is dead, paused or cut off, and what it reported still counts", s.ID, s.Versions(), duration.HumanDuration(s.Renewed))
		p.Do, p.Run = fmt.Sprintf("wait: the other servers delete its Lease when they have seen it unrenewed for %s; or, if it is gone for good", duration.HumanDuration(s.Lasts)), deleted
	case s.State == servers.Stock:
		p.Kind = StockServer
		p.Text = fmt.Sprintf("%s is a kube-apiserver without Concord: it does not report what it writes, so that nobody can agree while it runs", s.ID)
		p.Do, p.Run = "replace it by concord kube-apiserver, or stop it and then", deleted
	case s.State == servers.Silent:
		p.Kind = SilentServer
		p.Text = fmt.Sprintf("%s (%s) does not report what it writes: its feature gate StorageVersionAPI is off", s.ID, s.Versions())
		p.Do = "start it with the feature gate (without StorageVersionAPI=false or AllBeta=false in its --feature-gates), or stop it"
	case s.Late:
		p.Kind = LateServer
		p.Text = fmt.Sprintf("%s (%s) has not renewed its Lease for %s: it is busy, paused, cut off or has just died, and what it reported counts", s.ID, s.Versions(), duration.HumanDuration(s.Renewed))
		if s.Ahead {
			p.Text = fmt.Sprintf("%s (%s) did not renew its Lease in the %s in which it was watched, and its clock is ahead of that of the server which answered: it is busy, paused, cut off or has died, and what it reported counts", s.ID, s.Versions(), duration.HumanDuration(s.Renewed))
		}
		p.Do = fmt.Sprintf("look again: the other servers delete its Lease when they have seen it unrenewed for %s", duration.HumanDuration(s.Lasts))
	default:
		return p
	}
	if n := len(waits); n > 0 {
		p.Text += fmt.Sprintf("; %s %s for it", prose.Count(n, "resource"), prose.Plural(n, "waits", "wait"))
	}
	return p
}
