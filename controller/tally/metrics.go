package tally

import (
	"strconv"
	"sync/atomic"

	"k8s.io/component-base/metrics"
)

// Metrics are gauges that all change at once: between two counts no series is missing, as that would
// end an alert on it.
type Metrics struct {
	metrics.BaseStableCollector
	agreed, encodings, keys, migrations, objects, renewed *metrics.Desc

	counted atomic.Pointer[tally]
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	gauge := func(name, help string, labels ...string) *metrics.Desc {
		return metrics.NewDesc(name, help, labels, nil, metrics.ALPHA, "")
	}
	return &Metrics{
		agreed: gauge("concord_storage_agreed",
			"1 if all API servers store the resource in the same version, with the same key; 0 if not or if that is not known. The StorageState's status.message says why.",
			"resource"),
		encodings: gauge("concord_storage_encodings",
			"In how many ways (versions, keys) objects of the resource may be stored, as the StorageState says. Unknown counts as one.",
			"resource"),
		keys: gauge("concord_storage_keys",
			"How many encryption keys stored objects of the resource may need, counting those that are not encrypted as one; 0 if the resource was never encrypted. While there are two, the older one cannot be removed.",
			"resource"),
		migrations: gauge("concord_migrations",
			"StorageVersionMigrations of the resource by phase: Pending, WaitingForAgreement, Running, Retrying, Paused, Succeeded, Failed, Superseded. A superseded one has ended because what changed made it pointless; where Concord migrates by itself it makes another one, elsewhere ask again.",
			"resource", "phase"),
		objects: gauge("concord_migration_objects",
			"Objects of the resource's newest migration by state: done, failed, remaining.",
			"resource", "state"),
		renewed: gauge("concord_server_lease_renewed_timestamp_seconds",
			"When the API server with this identity Lease last renewed it, and whether it reports how it stores objects. Nothing is agreed on while a server that does not report has a Lease.",
			"lease", "reports"),
	}
}

// DescribeWithStability is for the registry.
func (x *Metrics) DescribeWithStability(to chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{x.agreed, x.encodings, x.keys, x.migrations, x.objects, x.renewed} {
		to <- d
	}
}

// CollectWithStability is for the registry.
func (x *Metrics) CollectWithStability(to chan<- metrics.Metric) {
	counted := x.counted.Load()
	if counted == nil {
		return
	}
	gauge := func(d *metrics.Desc, value float64, labels ...string) {
		to <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, value, labels...)
	}
	for resource, s := range counted.states {
		gauge(x.agreed, float64(s.agreed), resource)
		gauge(x.encodings, float64(s.encodings), resource)
		gauge(x.keys, float64(s.keys), resource)
	}
	for resource, m := range counted.migrations {
		for _, p := range phases {
			gauge(x.migrations, float64(m.phases[p]), resource, string(p))
		}
		gauge(x.objects, float64(m.newest.Done), resource, "done")
		gauge(x.objects, float64(m.newest.Failed), resource, "failed")
		gauge(x.objects, float64(max(0, m.newest.Total-m.newest.Done-m.newest.Failed)), resource, "remaining")
	}
	for lease, l := range counted.leases {
		gauge(x.renewed, l.renewed, lease, strconv.FormatBool(l.reports))
	}
}

// show has the metrics show the counts; nil: they show nothing.
func (x *Metrics) show(counted *tally) { x.counted.Store(counted) }
