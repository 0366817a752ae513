package sim

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// A stock server is a kube-apiserver without Concord. It has an identity Lease, which it
// leaves behind whatever way it ends, serves before that exists, and writes without a report,
// gate or fence.

const (
	stockDuration = time.Hour
	stockInterval = 10 * time.Second
	stockPrefix   = "apiserver-stock"
)

// stockID is the ID of a stock server in a slot: made of its host's name, so always the same.
func stockID(slot int) agree.ServerID {
	return agree.ServerID(stockPrefix + strings.TrimPrefix(script.SlotName(slot), "s"))
}

func isStock(id agree.ServerID) bool { return strings.HasPrefix(string(id), stockPrefix) }

// heartbeat creates or renews the Lease, as the lease controller of component-helpers does.
func (p *Process) heartbeat(ctx context.Context) error {
	c, lease := apiClient{p: p}, &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: string(stockID(p.slot))}
	err := c.Get(ctx, key, lease)
	now := metav1.NewMicroTime(p.clock.Now())
	if apierrors.IsNotFound(err) {
		lease.Name, lease.Namespace = key.Name, key.Namespace
		lease.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
		lease.Spec = coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(key.Name + "_" + p.String()), LeaseDurationSeconds: ptr.To(int32(stockDuration / time.Second)), RenewTime: &now,
		}
		return c.Create(ctx, lease)
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &now
	return c.Update(ctx, lease)
}

// stockLeases are the servers that have a Lease and do not report.
func (w *World) stockLeases() []*mvccpb.KeyValue {
	var found []*mvccpb.KeyValue
	w.store.Scan(registry.Leases.Prefix()+stockPrefix, func(kv *mvccpb.KeyValue) { found = append(found, kv) })
	return found
}

func idOf(lease *mvccpb.KeyValue) agree.ServerID {
	return agree.ServerID(strings.TrimPrefix(string(lease.Key), registry.Leases.Prefix()))
}

// noticed says whether a StorageVersion says that a server does not report.
func (w *World) noticed(sv *v1alpha1.StorageVersion, id agree.ServerID) bool {
	if sv == nil {
		return false
	}
	report, ok := agree.Of(w.read(sv).reports, id)
	return ok && report.Encoding == agree.Unknown
}

// judgeStock takes a stock server's put. While Unknown is reported for it, its writes are
// covered: stored sets have Unknown. Before, as when its Lease is new or was deleted although
// it lives, nothing is promised of it until Unknown is reported.
func (w *World) judgeStock(r *request, res *object.Resource, key string) {
	if id := stockID(r.by.slot); !w.noticed(w.api.LookStorageVersion(res), id) {
		w.ledger.unnoticed[key] = id
	}
}

// judgeSilence checks a write of a StorageVersion whose writer has read the Leases:
// nothing is called agreed beside a Lease that was there before.
func (w *World) judgeSilence(r *request, name string, after *v1alpha1.StorageVersion) {
	for _, lease := range w.stockLeases() {
		id := idOf(lease)
		switch {
		case w.noticed(after, id):
			w.forgive(name, id)
		case w.read(after).agreed && lease.CreateRevision <= r.began:
			// I3 While commonEncodingVersion = v, every put that commits is in v.
			w.violate("I3", "%s says that all agree beside %s, whose Lease was there when it began; %s", r.by, id, described{after})
		}
	}
}

// forgive ends the exception for the keys that a server wrote before Unknown was reported for it.
func (w *World) forgive(version string, id agree.ServerID) {
	for _, r := range object.All {
		if r.Version != version {
			continue
		}
		for key, by := range w.ledger.unnoticed {
			if by == id && strings.HasPrefix(key, r.Prefix) {
				delete(w.ledger.unnoticed, key)
			}
		}
	}
}

// dismiss has an administrator delete the Leases of stock servers, which have all ended,
// when every StorageVersion has said that they do not report.
func (w *World) dismiss() {
	found := w.stockLeases()
	if len(found) == 0 {
		return
	}
	w.until(w.silence)
	for _, lease := range found {
		w.remove(string(lease.Key))
	}
	w.observe(nil)
}

// silence says which StorageVersion does not tell that a server does not report.
func (w *World) silence() reason {
	for _, lease := range w.stockLeases() {
		for _, r := range object.All {
			if r.Custom && w.api.LookDefinition() == nil {
				continue
			}
			if sv := w.api.LookStorageVersion(r); !w.noticed(sv, idOf(lease)) || w.read(sv).agreed {
				return because("nobody reports Unknown for %s: %s", idOf(lease), described{sv})
			}
		}
	}
	return nil
}
