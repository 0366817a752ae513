// Package timing measures how long reports and agreements take.
package timing

import (
	"maps"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"

	"github.com/concord-dev/concord/api/storageversion"
)

// Metrics measure the times for which KEP-2339 sets objectives ("SLOs": one minute each).
type Metrics struct {
	report    *metrics.Histogram
	agreement *metrics.Histogram
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	buckets := metrics.ExponentialBuckets(0.005, 2, 16) // 5 ms to 164 s
	return &Metrics{
		report: metrics.NewHistogram(&metrics.HistogramOpts{
			Name:           "concord_storageversion_report_duration_seconds",
			Help:           "Time from the start of this server, or the loss of its identity Lease, until its reports of all built-in resources stood.",
			Buckets:        buckets,
			StabilityLevel: metrics.ALPHA,
		}),
		agreement: metrics.NewHistogram(&metrics.HistogramOpts{
			Name:           "concord_storageversion_agreement_duration_seconds",
			Help:           "Time from the change that ended the agreement on a resource's encoding until all servers agreed again, as this server watched it.",
			Buckets:        buckets,
			StabilityLevel: metrics.ALPHA,
		}),
	}
}

// Registerables returns the metrics to register.
func (x *Metrics) Registerables() []metrics.Registerable {
	return []metrics.Registerable{x.report, x.agreement}
}

// ObserveReport counts a time until all built-in resources were reported. x may be nil.
func (x *Metrics) ObserveReport(d time.Duration) {
	if x != nil {
		x.report.Observe(d.Seconds())
	}
}

// ObserveAgreement counts a time without agreement. x may be nil.
func (x *Metrics) ObserveAgreement(d time.Duration) {
	if x != nil {
		x.agreement.Observe(d.Seconds())
	}
}

// Agreements remember since when there is none, of each StorageVersion.
type Agreements struct {
	since map[types.UID]time.Time
}

// NewAgreements returns Agreements that remember nothing yet.
func NewAgreements() *Agreements { return &Agreements{since: map[types.UID]time.Time{}} }

// Observe takes in a StorageVersion. It returns how long there was no agreement, and
// true, if there is one again. A StorageVersion without reports is not disagreed on.
func (a *Agreements) Observe(sv *v1alpha1.StorageVersion, now time.Time) (time.Duration, bool) {
	since, open := a.since[sv.UID]
	_, agreed := storageversion.Agreement(sv)
	switch {
	case agreed || len(sv.Status.StorageVersions) == 0:
		delete(a.since, sv.UID)
		return now.Sub(since), open && agreed
	case !open:
		a.since[sv.UID] = now
	}
	return 0, false
}

// Forget takes in that a StorageVersion is gone.
func (a *Agreements) Forget(uid types.UID) { delete(a.since, uid) }

// Keep forgets all StorageVersions but these.
func (a *Agreements) Keep(items []v1alpha1.StorageVersion) {
	uids := sets.New[types.UID]()
	for i := range items {
		uids.Insert(items[i].UID)
	}
	maps.DeleteFunc(a.since, func(uid types.UID, _ time.Time) bool { return !uids.Has(uid) })
}
