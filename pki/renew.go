package pki

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	// renewPeriod is how often certificates are checked for renewal.
	renewPeriod = 6 * time.Hour
	// renewRetry is how soon again after a failure. There are months for it.
	renewRetry = 10 * time.Minute
)

// Renew renews the certificates, and the kubeconfig, until ctx ends. They are renewed in
// place: a server that reads the files again, as Kubernetes' dynamic certificates do by themselves,
// has the new ones without a restart. Files that servers were given are renewed by their owner.
func (c *Certificates) Renew(ctx context.Context) {
	for period := renewPeriod; ; {
		timer := c.config.Clock.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		period = renewPeriod
		if _, err := Ensure(c.config); err != nil {
			klog.FromContext(ctx).Error(err, "Certificates could not be renewed; it is tried again", "directory", c.config.Dir, "in", renewRetry)
			period = renewRetry
		}
	}
}
