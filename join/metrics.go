package join

//go:generate env CONCORD_UPDATE=1 go test . -run TestMetricsReference

import (
	"fmt"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/member/timing"
	"github.com/concord-dev/concord/migrate/claim"
)

// The metrics are the process's: servers in one process, as tests have them, share them.
var (
	memberMetrics    = registered(timing.NewMetrics)
	migrationMetrics = registered(claim.NewMetrics)
	skewMetrics      = registered(skew.NewMetrics)
	tallyMetrics     = sync.OnceValues(func() (*tally.Metrics, error) {
		made := tally.NewMetrics()
		return made, legacyregistry.CustomRegister(made)
	})
)

// Why the gate refuses a write.
const (
	refusedUnreported = "NotReported" // this server has not reported the resource
	refusedByEtcd     = "EtcdUnwritable"
	refusedRestored   = "EtcdRestored"
)

var (
	refused = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "concord", Subsystem: "gate", Name: "refused_requests_total",
		Help:           "Writes that the gate has answered with 503, by reason: NotReported while this server has not reported how it stores the resource, EtcdUnwritable while etcd does not answer or has no space, EtcdRestored since etcd went back to an older revision, until this server is restarted.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	registerRefused = sync.OnceFunc(func() {
		legacyregistry.MustRegister(refused)
		for _, reason := range []string{refusedUnreported, refusedByEtcd, refusedRestored} {
			refused.WithLabelValues(reason) // so that its first refusal is seen as an increase
		}
	})
)

// registered returns a function that makes metrics and registers them, once.
func registered[M interface{ Registerables() []metrics.Registerable }](make func() M) func() (M, error) {
	return sync.OnceValues(func() (M, error) {
		made := make()
		for _, m := range made.Registerables() {
			if err := legacyregistry.Register(m); err != nil {
				return made, fmt.Errorf("metrics: %w", err)
			}
		}
		return made, nil
	})
}
