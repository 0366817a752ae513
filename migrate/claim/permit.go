package claim

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// over says that a migration has ended, and how.
type over struct{ reason, message string }

func (o *over) Error() string { return o.reason + ": " + o.message }

// errNotOurs says that this server may not do the migration, but another one may.
var errNotOurs = errors.New("this server cannot do it")

// refused says why this server leaves the migration alone; "" if it may claim it.
func (w *work) refused(ctx context.Context) (string, error) {
	if w.self == "" {
		return "this server is not registered", nil
	}
	leases, err := w.leases(ctx)
	if err != nil {
		return "", err
	}
	claimer := agree.ServerID(w.m.Annotations[migrationv1alpha1.ClaimedByAnnotation])
	if claimer != "" && claimer != w.self && leaseOf(leases, claimer) != nil {
		return fmt.Sprintf("%s has claimed it", claimer), nil
	}
	if why := tooOld(leases, w.self); why != "" {
		return why, w.tellNobody(ctx, leases)
	}
	// The fence sees to it that this permits the rewrite as well: where the StorageVersion
	// has moved since, nothing is written before it is read again.
	w.revision, err = w.permitted(ctx)
	var end *over
	switch {
	case errors.As(err, &end) && claimer == w.self:
		return "", nil // work.do says how it ended
	case errors.As(err, &end) || errors.Is(err, errNotOurs):
		return err.Error(), nil
	}
	return "", err
}

// leases are the identity Leases of the control plane's servers.
func (w *work) leases(ctx context.Context) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	err := w.c.cfg.Client.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities})
	if err != nil {
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	return storageversion.ControlPlane(leases.Items), nil
}

func leaseOf(leases []coordinationv1.Lease, id agree.ServerID) *coordinationv1.Lease {
	for i := range leases {
		if leases[i].Name == string(id) {
			return &leases[i]
		}
	}
	return nil
}

// tooOld explains why a server may not decode what others have written: it is older than one of them, and could drop
// fields that it does not know. A server whose version is not known may be newer than any other.
func tooOld(leases []coordinationv1.Lease, self agree.ServerID) string {
	own := leaseOf(leases, self)
	if own == nil {
		return "this server has no identity Lease"
	}
	ours, err := emulated(own)
	if err != nil {
		return "this server does not tell its version: " + err.Error()
	}
	for i := range leases {
		theirs, err := emulated(&leases[i])
		if err != nil {
			return fmt.Sprintf("%s does not tell its version: %v", leases[i].Name, err)
		}
		if ours.LessThan(theirs) {
			return fmt.Sprintf("this server emulates %s and is older than %s, which emulates %s", ours, leases[i].Name, theirs)
		}
	}
	return ""
}

func emulated(lease *coordinationv1.Lease) (*version.Version, error) {
	return version.ParseGeneric(lease.Annotations[storageversion.EmulationVersionAnnotation])
}

// permitted checks whether the migration may run here, and returns the revision of the StorageVersion that permits it.
// The error is an *over if the migration can no longer count, and wraps errNotOurs if only this server cannot do it.
// The CustomResourceDefinition is read first and its generation pinned: while it stays the same, no server changes to
// another version.
func (w *work) permitted(ctx context.Context) (int64, error) {
	if err := w.checkCRD(ctx); err != nil {
		return 0, err
	}
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	err := w.c.cfg.Client.Get(ctx, client.ObjectKey{Name: storageversion.Name(w.gr)}, sv)
	if storageversion.IsGone(err) {
		return 0, &over{migrationv1alpha1.ReasonStorageVersionChanged, "the resource has no StorageVersion any more"}
	}
	if err != nil {
		return 0, fmt.Errorf("get StorageVersion: %w", err)
	}
	if end := judge(sv, w.target); end != nil {
		return 0, end
	}
	if err := w.choose(ctx, storageversion.Reports(sv)); err != nil {
		return 0, err
	}
	revision, err := strconv.ParseInt(sv.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the StorageVersion's resourceVersion is no revision: %w", err)
	}
	return revision, nil
}

// judge says why a StorageVersion does not stand for the target; nil if it does.
func judge(sv *apiserverinternalv1alpha1.StorageVersion, target evolve.Target) *over {
	view, err := storageversion.View(sv)
	if err != nil {
		return &over{migrationv1alpha1.ReasonStorageVersionChanged, err.Error()}
	}
	now, agreed := view.Agreement()
	switch {
	case !agreed:
		return &over{migrationv1alpha1.ReasonAgreementLost, "servers do not agree on an encoding"}
	case now != target:
		return &over{migrationv1alpha1.ReasonStorageVersionChanged, fmt.Sprintf("servers now agree on %s", now)}
	}
	return nil
}

// checkCRD asks a custom resource's definition to store the encoding, and to be as it
// was when it was first read.
func (w *work) checkCRD(ctx context.Context) error {
	if w.gr.Group == "" {
		return nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	err := w.c.cfg.Client.Get(ctx, client.ObjectKey{Name: w.gr.String()}, crd)
	if err != nil && !storageversion.IsGone(err) {
		return fmt.Errorf("get CustomResourceDefinition: %w", err)
	}
	pin := CRD{UID: string(crd.UID), Generation: crd.Generation}
	if w.pin == nil {
		w.pin = &pin
	}
	if *w.pin != pin {
		return &over{migrationv1alpha1.ReasonCRDChanged, "the CustomResourceDefinition changed during the rewrite"}
	}
	if err == nil && migrationv1alpha1.Stores(crd) != w.target.Encoding.Plain() {
		return fmt.Errorf("%w: the CustomResourceDefinition does not store %s", errNotOurs, w.target.Encoding.Plain())
	}
	return nil
}

// claim writes this server's name on the migration, if it is as it was read, and sets
// its Running condition.
func (w *work) claim(ctx context.Context) error {
	taken := w.m.Annotations[migrationv1alpha1.ClaimedByAnnotation] != string(w.self)
	if taken {
		metav1.SetMetaDataAnnotation(&w.m.ObjectMeta, migrationv1alpha1.ClaimedByAnnotation, string(w.self))
		if err := w.c.cfg.Client.Update(ctx, w.m); err != nil {
			return err
		}
	}
	began := migrationv1alpha1.True(w.m, migrationv1alpha1.MigrationRunning) != nil
	w.setRunning(w.m)
	if err := w.c.cfg.Client.Status().Update(ctx, w.m); err != nil {
		return err
	}
	if taken {
		w.tellStart(ctx, began)
	}
	return nil
}

// tellStart writes an event that this server has taken a migration; before says whether the migration had begun earlier.
func (w *work) tellStart(ctx context.Context, before bool) {
	reason, note := migrationv1alpha1.EventStarted, fmt.Sprintf("%s rewrites %s to %s", w.self, w.gr, w.target.Encoding)
	if before {
		reason = migrationv1alpha1.EventResumed
		if p := w.m.Status.Progress; p != nil && w.position() != "" {
			note += fmt.Sprintf(", from where it was: %d of %d objects are done", p.Done, p.Total)
		} else {
			note += ", from the beginning"
		}
	}
	w.event(ctx, corev1.EventTypeNormal, reason, note)
}
