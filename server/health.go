package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// addEtcdChecks adds the checks that operators of kube-apiserver know: etcd (health,
// liveness, readiness) and etcd-readiness. They use the shared client.
func addEtcdChecks(c *genericapiserver.Config, etcd *clientv3.Client, config storagebackend.Config) {
	c.AddHealthChecks(healthz.NamedGroupedCheck("etcd", "etcd", answers(etcd, config.HealthcheckTimeout)))
	c.AddReadyzChecks(healthz.NamedGroupedCheck("etcd-readiness", "etcd-readiness", answers(etcd, config.ReadycheckTimeout)))
}

// answers checks that etcd answers a linearizable read, hence has a quorum.
func answers(etcd *clientv3.Client, timeout time.Duration) func(*http.Request) error {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		if _, err := etcd.Get(ctx, "health"); err != nil {
			return fmt.Errorf("etcd does not answer: %w", err)
		}
		return nil
	}
}
