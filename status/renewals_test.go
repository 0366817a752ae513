package status_test

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
)

// serverLease is the Lease of a server of Concord that has reported, or of a stock one.
func serverLease(renewed time.Time, stock bool) coordinationv1.Lease {
	var lease coordinationv1.Lease
	lease.Name, lease.Labels = "apiserver-a", map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
	seconds, at := int32(15), metav1.NewMicroTime(renewed)
	lease.Annotations = map[string]string{storageversion.BinaryVersionAnnotation: "1.37", storageversion.ReportedAnnotation: "true"}
	if stock {
		lease.Annotations, seconds = nil, 3600
	}
	lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &seconds, &at
	return lease
}

// TestClocksOfServers: if a Lease's renewTime would make its server dead, or lies in the future, the Lease is judged by
// whether it is renewed while it is watched. A server that renews it is never dead, whatever its clock shows.
func TestClocksOfServers(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	other := serverLease(now, false)
	other.Name = "apiserver-b"
	for _, test := range []struct {
		why        string
		old        time.Duration // age of the renewTime when the Lease is read first
		renewed    bool          // the Lease is renewed before it is read again
		stock      bool
		long       bool // the duration is two minutes
		first      string
		doubt      time.Duration
		after      time.Duration // time until the Lease is read again
		second     string
		deletesNow bool
	}{
		{why: "lives", old: 4 * time.Second, renewed: true, first: servers.Serving, after: 9 * time.Second, second: servers.Serving},
		{why: "is behind", old: 10 * time.Minute, renewed: true, first: servers.Unrenewed, doubt: 8500 * time.Millisecond, after: 9 * time.Second, second: servers.Serving},
		{why: "is ahead", old: -10 * time.Minute, renewed: true, first: servers.Serving, doubt: 8500 * time.Millisecond, after: 9 * time.Second, second: servers.Serving},
		{why: "is dead", old: time.Minute, first: servers.Unrenewed, doubt: 8500 * time.Millisecond, after: 9 * time.Second, second: servers.Dead, deletesNow: true},
		{why: "is dead and was ahead", old: -10 * time.Minute, first: servers.Serving, doubt: 8500 * time.Millisecond, after: 9 * time.Second, second: servers.Unrenewed},
		{why: "is dead and was ahead, for long", old: -10 * time.Minute, first: servers.Serving, doubt: 8500 * time.Millisecond, after: 15 * time.Second, second: servers.Dead, deletesNow: true},
		{why: "was busy", old: 12 * time.Second, renewed: true, first: servers.Unrenewed, after: 9 * time.Second, second: servers.Serving},
		{why: "is busy", old: 12 * time.Second, first: servers.Unrenewed, after: 2 * time.Second, second: servers.Unrenewed},
		{why: "is behind with a long Lease", old: 10 * time.Minute, long: true, first: servers.Unrenewed, doubt: 11 * time.Second, after: 11 * time.Second, second: servers.Unrenewed},
		{why: "is dead with a long Lease", old: 10 * time.Minute, long: true, first: servers.Unrenewed, doubt: 11 * time.Second, after: 61 * time.Second, second: servers.Dead, deletesNow: true},
		{why: "is stock and behind", old: 10 * time.Minute, renewed: true, stock: true, first: servers.Stock, doubt: 11 * time.Second, after: 11 * time.Second, second: servers.Stock},
		{why: "is stock and dead", old: 10 * time.Minute, stock: true, first: servers.Stock, doubt: 11 * time.Second, after: 11 * time.Second, second: servers.Dead, deletesNow: true},
	} {
		var watch servers.Watch
		began := time.Now()
		lease := serverLease(now.Add(-test.old), test.stock)
		if test.long {
			lease.Spec.LeaseDurationSeconds = ptr.To(int32(120))
		}
		// The Lease of upstream's code in the process of a server that is gone does not count.
		upstreams := serverLease(now.Add(-time.Minute), true)
		upstreams.Name = storageversion.UpstreamIdentityPrefix + "x"
		o := status.Observed{Now: now, Leases: []coordinationv1.Lease{lease, other, upstreams}}
		o.Renewals = watch.Note(o.Leases, began)
		if got := state(o); got != test.first || servers.Doubt(o.Leases, o.Now, o.Renewals) != test.doubt {
			t.Errorf("%s: %s, in doubt for %s, want %s and %s", test.why, got, servers.Doubt(o.Leases, o.Now, o.Renewals), test.first, test.doubt)
		}
		if test.renewed {
			lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Add(5 * time.Second)
		}
		other.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(test.after)}
		o = status.Observed{Now: now.Add(test.after), Leases: []coordinationv1.Lease{lease, other}}
		o.Renewals = watch.Note(o.Leases, began.Add(test.after))
		if got := state(o); got != test.second || test.after >= test.doubt && !test.long && servers.Doubt(o.Leases, o.Now, o.Renewals) > 0 {
			t.Errorf("%s: %s, in doubt for %s when it was watched for %s, want %s", test.why, got, servers.Doubt(o.Leases, o.Now, o.Renewals), test.after, test.second)
		}
		deletes := false
		for _, p := range status.Of(o).Problems {
			deletes = deletes || p.Kind == status.DeadServer && p.Run != ""
		}
		if deletes != test.deletesNow {
			t.Errorf("%s: it says to delete its Lease: %t", test.why, deletes)
		}
		other.Spec.RenewTime = &metav1.MicroTime{Time: now}
	}
}

// state returns the state of the server apiserver-a.
func state(o status.Observed) string {
	for _, s := range status.Of(o).Servers {
		if s.ID == "apiserver-a" {
			return s.State
		}
	}
	return ""
}
