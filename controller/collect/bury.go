package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/workers"
)

// Bury removes a server from the protocol: it deletes the server's Lease, then drops its reports and recomputes
// agreement (the Lease has to be deleted before the reports, or the server would see its report disappear
// and make it again). Reports of other servers without a Lease are dropped, too. After an error, also a conflict with
// another writer of a StorageVersion, it has to be called again.
func (c *Collector) Bury(ctx context.Context, id agree.ServerID) error {
	if err := c.deleteLease(ctx, id); err != nil {
		return fmt.Errorf("bury %s: %w", id, err)
	}
	if err := c.sweep(ctx, sweeping{gone: id}); err != nil {
		return fmt.Errorf("bury %s: %w", id, err)
	}
	return nil
}

// sweeping holds what a sweep does besides bringing the reports in line with the existing Leases.
type sweeping struct {
	gone        agree.ServerID // this one's reports, too
	removeEmpty bool           // StorageVersions without reports are deleted
}

// action says whether a StorageVersion is left as it is, written or removed.
type action int

const (
	leave action = iota
	write
	remove
)

// decide returns the reports as they should be, and the action on the StorageVersion. The given reports were read
// before the participants. While a server is starting (or may be: see keep), or is about to start because none
// reports, its reports are still to come, and StorageVersions without reports are kept for them.
func decide(reports []agree.Report, participants agree.Participants, starting bool, how sweeping) ([]agree.Report, action) {
	expecting := starting || participants.Reporting() == 0
	settled := agree.Settle(reports, participants)
	if how.gone != "" {
		settled = agree.Without(settled, how.gone)
	}
	switch {
	case len(agree.Made(settled)) == 0 && how.removeEmpty && !expecting:
		return nil, remove
	case !agree.Equal(settled, reports):
		return settled, write
	default:
		return settled, leave
	}
}

// sweep looks through all StorageVersions. They are read before the participants, so
// that every report seen was made by a server that had its Lease before; and they are
// written only as they were read.
func (c *Collector) sweep(ctx context.Context, how sweeping) error {
	var list v1alpha1.StorageVersionList
	if err := c.cfg.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list StorageVersions: %w", err)
	}
	leases, err := c.leases(ctx)
	if err != nil {
		return err
	}
	participants, someStarting := storageversion.Participants(leases), slices.ContainsFunc(leases, func(l coordinationv1.Lease) bool { return c.starting(&l) })
	var kept map[string]bool
	if how.removeEmpty {
		kept = c.keep(list.Items)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.StorageVersion) int { return strings.Compare(a.Name, b.Name) })
	return c.each(ctx, list.Items, func(sv *v1alpha1.StorageVersion) error {
		before := storageversion.Reports(sv)
		settled, do := decide(before, of(sv, participants), someStarting || kept[sv.Name], how)
		return c.act(ctx, sv, before, settled, do)
	})
}

// of returns the participants with regard to a StorageVersion's resource.
func of(sv *v1alpha1.StorageVersion, participants agree.Participants) agree.Participants {
	gr, err := storageversion.GroupResource(sv.Name)
	if err != nil { // nobody writes what has no name
		return participants
	}
	return participants.For(gr)
}

// vacancy is since when a StorageVersion is seen without reports that servers made, and as which.
type vacancy struct {
	uid             types.UID
	resourceVersion string
	since           time.Time
}

// keep returns the names of StorageVersions of aggregated servers that must not be deleted yet, even if no server
// reports them. An aggregated server does not announce its start, is often the only one, and may be far away, so that
// each step of its reports takes long. Deleting its StorageVersion would lose the record of epochs, and everything
// would be migrated again after its restart. The time counts from when this collector first saw a StorageVersion in
// its current state; no other clock matters. Only the goroutine that calls Step may call keep.
func (c *Collector) keep(items []v1alpha1.StorageVersion) map[string]bool {
	now, kept, vacant := c.cfg.Clock.Now(), map[string]bool{}, map[string]vacancy{}
	for i := range items {
		sv := &items[i]
		if _, aggregated := sv.Labels[storageversion.AggregatedLabel]; !aggregated {
			continue
		}
		if len(agree.Made(storageversion.Reports(sv))) > 0 {
			kept[sv.Name] = true // it is not vacant before it is written without them
			continue
		}
		v, known := c.vacant[sv.Name]
		if !known || v.uid != sv.UID || v.resourceVersion != sv.ResourceVersion {
			v = vacancy{uid: sv.UID, resourceVersion: sv.ResourceVersion, since: now}
		}
		vacant[sv.Name], kept[sv.Name] = v, now.Sub(v.since) < keepVacant
	}
	c.vacant = vacant
	return kept
}

// act carries out a decision on the StorageVersion as it was read.
func (c *Collector) act(ctx context.Context, sv *v1alpha1.StorageVersion, before, settled []agree.Report, do action) error {
	var err error
	switch do {
	case write:
		storageversion.SetReports(sv, settled, metav1.NewTime(c.cfg.Clock.Now()))
		if err = c.cfg.Client.Status().Update(ctx, sv); err == nil {
			c.cfg.Logger.V(1).Info("Settled the reports with who participates", "storageVersion", sv.Name, "before", before, "now", settled)
		}
	case remove:
		uid, resourceVersion := sv.UID, sv.ResourceVersion
		if err = c.cfg.Client.Delete(ctx, sv, client.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}); err == nil {
			c.cfg.Logger.Info("Deleted a StorageVersion that nobody reports", "storageVersion", sv.Name)
		}
	}
	switch {
	case err == nil || storageversion.IsGone(err):
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("StorageVersion %s was changed by somebody else, it will be read again: %w", sv.Name, err)
	default:
		return fmt.Errorf("collect reports in StorageVersion %s: %w", sv.Name, err)
	}
}

// each handles every item, Config.Workers at once, and joins the errors.
func (c *Collector) each(ctx context.Context, items []v1alpha1.StorageVersion, handle func(*v1alpha1.StorageVersion) error) error {
	failed := make([]error, len(items))
	if c.cfg.Workers == 1 {
		for i := range items {
			failed[i] = handle(&items[i])
		}
		return errors.Join(failed...)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, c.cfg.Workers)
	for i := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			failed[i] = workers.Do(ctx, "collect-storageversion", func() error { return handle(&items[i]) })
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}
