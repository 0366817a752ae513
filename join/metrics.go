package join

import (
	"fmt"
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/member"
)

// The metrics are the process's: servers in one process, as tests have them, share them.
var (
	memberMetrics    = registered(member.NewMetrics)
	migrationMetrics = registered(migrate.NewMetrics)
	skewMetrics      = registered(skew.NewMetrics)
)

// registered returns what makes metrics and registers them, once.
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
