package claim

import (
	"context"
	"fmt"
	"slices"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// tellNobody has the migration say that no server may do it, if that is so: all that have the resource's store are too
// old. It is called on such a server; the first of them writes it, once. The server that begins after all writes its own
// condition in its place.
func (w *work) tellNobody(ctx context.Context, leases []coordinationv1.Lease) error {
	newest := newestOf(leases)
	if newest == nil || w.m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == string(w.self) {
		return nil // its own claim is given up first; and of a server that has not reported yet, it is not known which resources it has
	}
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	if err := w.c.cfg.Client.Get(ctx, client.ObjectKey{Name: storageversion.Name(w.gr)}, sv); err != nil {
		return client.IgnoreNotFound(err)
	}
	if agreed := judge(sv, w.target) == nil; !agreed {
		return nil // it is about to be deleted, or given another target
	}
	var old []agree.ServerID
	for _, report := range storageversion.Reports(sv) {
		if leaseOf(leases, report.Server) == nil || tooOld(leases, report.Server) == "" {
			return nil // it may do it, or has just left, or another API server stores the resource
		}
		old = append(old, report.Server)
	}
	if len(old) == 0 || slices.Min(old) != w.self {
		return nil
	}
	version := newest.Annotations[storageversion.EmulationVersionAnnotation]
	why := fmt.Sprintf("no server may do it: those that serve the resource emulate releases before %s, which %s emulates, and could drop what newer ones have written: have a server that emulates %s serve it, or have all emulate one release",
		version, newest.Name, version)
	was := migrationv1alpha1.Waiting(w.m)
	if was == why {
		return nil
	}
	migrationv1alpha1.SetWaiting(w.m, why, metav1.NewTime(w.c.cfg.Clock.Now()))
	if err := w.c.cfg.Client.Status().Update(ctx, w.m); err != nil {
		return err
	}
	if was == "" {
		w.event(ctx, corev1.EventTypeNormal, migrationv1alpha1.ReasonWaitingForAgreement, why)
	}
	return nil
}

// newestOf returns the Lease, the first by name, of a server of the newest release; nil if one of these servers has
// not reported everything yet, or if a server's version is not known.
func newestOf(leases []coordinationv1.Lease) (newest *coordinationv1.Lease) {
	for i := range leases {
		lease := &leases[i]
		if tooOld(leases, agree.ServerID(lease.Name)) != "" {
			continue
		}
		if lease.Annotations[storageversion.ReportedAnnotation] != "true" {
			return nil
		}
		if newest == nil || lease.Name < newest.Name {
			newest = lease
		}
	}
	return newest
}
