package hosting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

const (
	// sweepInterval is how often the elected server compares its own etcd's registrations with
	// the host's, sweepResync how often at least the host is asked.
	sweepInterval, sweepResync = time.Second, 30 * time.Second
	// storeLease is the Lease whose uid names an aggregated server's etcd to the host.
	storeLease = "concord-store"
)

// sweepBackoff is how long the elected server pauses after sweeps that fail: up to sweepResync.
var sweepBackoff = wait.Backoff{Duration: sweepInterval, Factor: 2, Steps: 10, Cap: sweepResync}

// sweptHost is when a sweep of the host last left nothing to do, and with which registrations.
type sweptHost struct {
	at    time.Time
	lived sets.Set[agree.ServerID]
}

// Lead is the work of the elected aggregated server: a server that is buried here it buries in
// the host, too.
func (h *Host) Lead(ctx context.Context) {
	h.swept = sweptHost{} // somebody else may have led since
	backoff := sweepBackoff
	for ctx.Err() == nil {
		pause := sweepInterval
		if err := h.sweepOnce(ctx); err == nil {
			backoff = sweepBackoff
		} else if ctx.Err() == nil {
			pause = backoff.Step()
			h.Logger.V(1).Info("Reports to the host cluster will be collected again", "reason", err.Error(), "after", pause)
		}
		select {
		case <-ctx.Done():
		case <-h.Clock.After(pause):
		}
	}
}

func (h *Host) sweepOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	return h.Sweep(ctx)
}

// Sweep buries in the host every server that has neither a Lease nor a report here any more. The
// host's Leases are read first: each was made by a server that was registered here before that. A
// server whose registration ended meanwhile may have made one since.
func (h *Host) Sweep(ctx context.Context) error {
	lived, err := registrations(ctx, h.own)
	if err != nil {
		return err
	}
	if h.Clock.Since(h.swept.at) < sweepResync && h.swept.lived.Equal(lived) {
		return nil
	}
	switch served, err := h.Serves(ctx); {
	case err != nil:
		return err
	case !served:
		h.swept = sweptHost{at: h.Clock.Now(), lived: lived}
		return nil
	}
	store, err := h.storeUID(ctx)
	if err != nil {
		return err
	}
	var leases coordinationv1.LeaseList
	if err := h.Objects.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabels{
		storageversion.IdentityLabel: storageversion.IdentityLabelValue, storageversion.AggregatedLabel: store,
	}); err != nil {
		return fmt.Errorf("list the host's identity Leases: %w", err)
	}
	living, err := registrations(ctx, h.own)
	if err != nil {
		return err
	}
	gone := orphans(leases.Items, living)
	bury := h.collect.Bury
	if len(gone) > 0 {
		// The Leases are known by the own etcd's label, whoever the StorageVersions belong to.
		if ours, err := h.ours(ctx); err != nil || !ours {
			bury = h.deleteLease
		}
	}
	for _, id := range gone {
		if err = errors.Join(err, bury(ctx, id)); err == nil {
			h.Logger.Info("Took the reports of a server that is gone back from the host cluster", "server", id)
		}
	}
	if err == nil && living.Equal(lived) {
		h.swept = sweptHost{at: h.Clock.Now(), lived: living}
	}
	return err
}

// registrations are the servers that have a Lease or, as long as they are not buried, a
// report in the own etcd. A report is read after the Leases: nobody makes a first one
// without.
func registrations(ctx context.Context, local client.Reader) (sets.Set[agree.ServerID], error) {
	var leases coordinationv1.LeaseList
	if err := local.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabelsSelector{Selector: storageversion.Identities}); err != nil {
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	var versions v1alpha1.StorageVersionList
	if err := local.List(ctx, &versions); err != nil {
		return nil, fmt.Errorf("list StorageVersions: %w", err)
	}
	living := sets.New[agree.ServerID]()
	for i := range leases.Items {
		living.Insert(agree.ServerID(leases.Items[i].Name))
	}
	for i := range versions.Items {
		for _, r := range storageversion.Reports(&versions.Items[i]) {
			living.Insert(r.Server)
		}
	}
	return living, nil
}

// orphans are the host's Leases of servers that are not among the living.
func orphans(hosts []coordinationv1.Lease, living sets.Set[agree.ServerID]) []agree.ServerID {
	gone := map[agree.ServerID]bool{}
	for i := range hosts {
		local := agree.ServerID(hosts[i].Annotations[storageversion.LocalIdentityAnnotation])
		if !living.Has(local) {
			gone[agree.ServerID(hosts[i].Name)] = true
		}
	}
	return slices.Sorted(maps.Keys(gone))
}

// storeUID names the etcd in which the replicas of this server meet, so that nobody buries
// those of another one in the host. It is the uid of a Lease there, which the first replica makes.
func (h *Host) storeUID(ctx context.Context) (string, error) {
	h.mu.RLock()
	known := h.store
	h.mu.RUnlock()
	if known != "" {
		return known, nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: storeLease}}
	err := h.own.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if storageversion.IsGone(err) {
		if err = h.own.Create(ctx, lease); apierrors.IsAlreadyExists(err) {
			err = h.own.Get(ctx, client.ObjectKeyFromObject(lease), lease)
		}
	}
	if err != nil {
		return "", fmt.Errorf("name the own etcd: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.store = string(lease.UID)
	return h.store, nil
}
