package stock

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/migrate/claim"
)

// The metrics are the process's: tests run several controllers in one.
var (
	migrationMetrics = sync.OnceValue(claim.NewMetrics)
	tallyMetrics     = sync.OnceValue(tally.NewMetrics)

	replicaGauge = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "concord", Subsystem: "observed", Name: "kube_apiservers", StabilityLevel: metrics.ALPHA,
		Help: "kube-apiservers whose identity Lease has not run out, by whether they answered when they were last asked.",
	}, []string{"answered"})
	resourceGauge = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "concord", Subsystem: "observed", Name: "resources", StabilityLevel: metrics.ALPHA,
		Help: "Stored resources, by whether all kube-apiservers were seen to store them in one version.",
	}, []string{"agreed"})
)

// Registerables are the metrics that no other part has.
func Registerables() []metrics.Registerable {
	return []metrics.Registerable{replicaGauge, resourceGauge}
}

var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(Registerables()...)
	legacyregistry.CustomMustRegister(tallyMetrics())
	legacyregistry.MustRegister(migrationMetrics().Registerables()...)
})

// measure sets the gauges after a full round.
func (o *observer) measure(alive int) {
	agreed := 0
	for _, sv := range o.known {
		if sv.Status.CommonEncodingVersion != nil {
			agreed++
		}
	}
	replicaGauge.WithLabelValues("true").Set(float64(len(o.here)))
	replicaGauge.WithLabelValues("false").Set(float64(alive - len(o.here)))
	resourceGauge.WithLabelValues("true").Set(float64(agreed))
	resourceGauge.WithLabelValues("false").Set(float64(len(o.known) - agreed))
}
