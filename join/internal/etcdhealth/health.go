// Package etcdhealth knows whether etcd answers, and whether it takes puts.
package etcdhealth

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/workers"
)

var (
	noSpace = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "concord", Subsystem: "etcd", Name: "no_space",
		Help:           "1 while etcd refuses writes since its space is used up (alarm NOSPACE), else 0.",
		StabilityLevel: metrics.ALPHA,
	})
	spaceUsed = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "concord", Subsystem: "etcd", Name: "space_used_ratio",
		Help:           "How much of etcd's quota its database takes, 0 to 1, in the member that was asked; 0 if etcd does not tell its quota (before 3.6).",
		StabilityLevel: metrics.ALPHA,
	})
	register = sync.OnceFunc(func() { legacyregistry.MustRegister(Registerables()...) })
)

// Registerables are the metrics of this package.
func Registerables() []metrics.Registerable { return []metrics.Registerable{noSpace, spaceUsed} }

// Health is how an etcd is. It asks until Stop.
type Health struct {
	answers *answers
	space   *space
	end     context.CancelFunc
	asking  sync.WaitGroup
}

// Watch asks the etcd that a client is connected to, for something under the prefix of its
// keys. A question may go without an answer for limit.
func Watch(client *clientv3.Client, prefix string, limit time.Duration) *Health {
	register() // values that are set before that are lost
	h := &Health{answers: newAnswers(client, prefix, limit), space: newSpace(client, limit)}
	fence.NoteNoSpace(client, h.space.refuse)
	var ctx context.Context
	ctx, h.end = context.WithCancel(context.Background())
	h.asking.Go(func() { workers.Loop(ctx, "etcd-health", h.answers.run) })
	h.asking.Go(func() { workers.Loop(ctx, "etcd-space", h.space.run) })
	return h
}

// Stop ends the questions. It may be called again.
func (h *Health) Stop() {
	h.end()
	h.asking.Wait()
}

// Away says in one line that etcd does not answer; nil while it does.
func (h *Health) Away() error { return h.answers.err() }

// Unwritable says in one line why etcd takes no puts at present; nil if it does.
func (h *Health) Unwritable() error {
	return cmp.Or(h.answers.wentBack(), h.answers.err(), h.space.err())
}

// WentBack says in one line that etcd is at an older revision than before, until the process is restarted; else nil.
func (h *Health) WentBack() error { return h.answers.wentBack() }

// Restored is the check etcd-restored, of liveness, too: it fails when etcd is at an older revision than before, until
// the process is restarted.
func (h *Health) Restored() healthz.HealthChecker {
	return healthz.NamedCheck("etcd-restored", func(*http.Request) error { return h.answers.wentBack() })
}

// Space is the readiness check etcd-space, which fails while etcd takes no puts.
func (h *Health) Space() healthz.HealthChecker {
	return healthz.NamedCheck("etcd-space", func(*http.Request) error {
		if h.space.err() != nil {
			return errors.New(fence.NoSpaceMessage)
		}
		return nil
	})
}
