package servers

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// Renewal describes a Lease as seen in two or more readings.
type Renewal struct {
	// For is how long it has been as it is.
	For metav1.Duration `json:"for"`
	// Renewed says that the Lease was seen to be renewed.
	Renewed bool `json:"renewed,omitempty"`
}

// Watch remembers Leases from one reading to the next. The zero Watch has read none.
type Watch struct{ last map[string]reading }

// reading is a Lease as it was read last: since is when it was read so first.
type reading struct {
	renewTime time.Time
	since     time.Time
	renewed   bool
}

// Note takes a reading, at a time of the reader's own clock, and returns what is known of each Lease by now.
func (w *Watch) Note(leases []coordinationv1.Lease, now time.Time) map[string]Renewal {
	last, known := map[string]reading{}, map[string]Renewal{}
	for i := range leases {
		var at time.Time
		if leases[i].Spec.RenewTime != nil {
			at = leases[i].Spec.RenewTime.Time
		}
		is, before := w.last[leases[i].Name]
		if !before || !is.renewTime.Equal(at) {
			is = reading{renewTime: at, since: now, renewed: before}
		}
		last[leases[i].Name] = is
		known[leases[i].Name] = Renewal{For: metav1.Duration{Duration: now.Sub(is.since)}, Renewed: is.renewed}
	}
	w.last = last
	return known
}

// Doubt is for how long Leases have to be watched until it is known which servers are dead: by their own times alone
// some seem to be, or lie in the future. It is 0 where none does, or it was done.
func Doubt(leases []coordinationv1.Lease, now time.Time, renewals map[string]Renewal) (doubt time.Duration) {
	for i := range leases {
		lease := &leases[i]
		if !storageversion.IsServer(lease.Name) {
			continue // it is upstream's own, of a server that has another one
		}
		lasts, old, seen := lastsFor(lease), age(lease, now), renewals[lease.Name]
		if lasts > 0 && !seen.Renewed && (old >= lasts || old < -lasts/3) {
			doubt = max(doubt, watchFor(lease, lasts)-seen.For.Duration)
		}
	}
	return min(doubt, longestDoubt)
}

const (
	// stockSilence is how long a kube-apiserver without Concord may not renew its Lease until it
	// counts as dead.
	stockSilence = time.Minute
	// stockRenews is the time between two renewals of a kube-apiserver without Concord.
	stockRenews = 10 * time.Second
	// longestDoubt is the longest time for which a command waits; a server whose Lease lasts longer is called
	// unrenewed.
	longestDoubt = 11 * time.Second
)

// lastsFor is how long a server counts as alive by its Lease; 0 if that is not known.
func lastsFor(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil || lease.Spec.RenewTime == nil {
		return 0
	}
	lasts := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	if storageversion.SilenceOf(lease) == agree.Stock {
		// It renews every few seconds a Lease that lasts for an hour.
		lasts = min(lasts, stockSilence)
	}
	return lasts
}

// watchFor returns the time in which a live server must have renewed its Lease: a Concord server renews it at least
// twice within its duration.
func watchFor(lease *coordinationv1.Lease, lasts time.Duration) time.Duration {
	if storageversion.SilenceOf(lease) == agree.Stock {
		return stockRenews + time.Second
	}
	return lasts/2 + time.Second
}

// age returns how long ago a Lease was renewed, by the clocks of its server and of the one that answered; negative if
// the former is ahead.
func age(lease *coordinationv1.Lease, now time.Time) time.Duration {
	if lease.Spec.RenewTime == nil {
		return 0
	}
	return now.Sub(lease.Spec.RenewTime.Time)
}
