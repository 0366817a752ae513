package fence

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	mismatches = newCounter("mismatches_total",
		"Write transactions that found the StorageVersion at another revision than the permission's and wrote nothing.",
		"group", "resource")
	retries = newCounter("retries_total",
		"Write transactions tried again because this server's report still stood in the changed StorageVersion.",
		"group", "resource")
	forwards = newCounter("forwards_total",
		"Writes that found their store superseded, by how they ended: success, error (the newer store's), unavailable (no newer store came in time).",
		"group", "resource", "result")
)

// countMismatch counts one, and shows the counters of the retries and forwards that may follow, so
// that their first increase is not missed.
func countMismatch(gr schema.GroupResource) {
	mismatches.WithLabelValues(gr.Group, gr.Resource).Inc()
	retries.WithLabelValues(gr.Group, gr.Resource)
	for _, result := range []string{"success", "error", "unavailable"} {
		forwards.WithLabelValues(gr.Group, gr.Resource, result)
	}
}

func newCounter(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace:      "concord",
		Subsystem:      "fence",
		Name:           name,
		Help:           help,
		StabilityLevel: metrics.ALPHA,
	}, labels)
}

// Registerables returns the metrics, which New registers.
func Registerables() []metrics.Registerable {
	return []metrics.Registerable{mismatches, retries, forwards}
}

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(Registerables()...) })
