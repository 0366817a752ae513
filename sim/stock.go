package sim

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/script"
)

// A stock server is a kube-apiserver without Concord. It has an identity Lease, serves before that exists, and writes
// without a report, gate or fence. If it is killed it leaves the Lease behind. If it is told to stop it deletes the
// Lease at once, serves on (--shutdown-delay-duration), and completes what was begun, as release 1.37 does.

const stockInterval = 10 * time.Second

// heartbeat creates or renews the Lease, as the lease controller of component-helpers does.
func (p *Process) heartbeat(ctx context.Context) error {
	c, lease := apiClient{p: p}, &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: string(invariant.StockID(p.Slot))}
	err := c.Get(ctx, key, lease)
	now := metav1.NewMicroTime(p.clock.Now())
	if apierrors.IsNotFound(err) {
		lease.Name, lease.Namespace = key.Name, key.Namespace
		lease.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
		lease.Spec = coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(key.Name + "_" + p.String()), LeaseDurationSeconds: ptr.To(int32(invariant.StockDuration / time.Second)), RenewTime: &now,
		}
		return c.Create(ctx, lease)
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &now
	return c.Update(ctx, lease)
}

// resign deletes the Lease of a server that was told to stop, and returns when all its writes have finished.
func (p *Process) resign(ctx context.Context) error {
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = storageversion.IdentityNamespace, string(invariant.StockID(p.Slot))
	if err := (apiClient{p: p}).Delete(ctx, lease); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	p.resigned, p.servesUntil = true, p.w.now+invariant.StockLingers
	p.await(func() bool { return p.tasks[script.Writing1] == nil && p.tasks[script.Writing2] == nil })
	return nil
}

// dismiss has an administrator delete the Leases of stock servers, which have all ended,
// when every StorageVersion has said that they do not report.
func (w *World) dismiss() {
	found := w.checker.StockLeases()
	if len(found) == 0 {
		return
	}
	if w.guest == nil { // a host's stores nothing
		w.until(w.checker.Silence)
	}
	for _, lease := range found {
		w.remove(string(lease.Key))
	}
	w.observe(nil)
}
