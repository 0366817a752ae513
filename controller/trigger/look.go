package trigger

import (
	"context"
	"fmt"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// look is one look at a resource: the observation, and the objects it was read from.
type look struct {
	evolve.Observation
	state      *migrationv1alpha1.StorageState
	migrations map[string]*migrationv1alpha1.StorageVersionMigration
	crd        *apiextensionsv1.CustomResourceDefinition
	// kind is the kind that discovery tells, once it was asked.
	kind string
	// aggregated is the StorageState's AggregatedAnnotation, by the StorageVersion.
	aggregated string
	// rehearses has a prune tried only: a last look, which may take long, is in vain where it is refused.
	rehearses bool
}

// look reads what a decision needs: the StorageState first, then the StorageVersion, so that the StorageVersion is
// never older than the one from which the StorageState was computed (section 3.5).
func (c *Controller) look(ctx context.Context, gr schema.GroupResource) (*look, error) {
	l := &look{Observation: evolve.Observation{Resource: gr}, migrations: map[string]*migrationv1alpha1.StorageVersionMigration{}}
	state, err := get(ctx, c.cfg.Client, migrationv1alpha1.StateName(gr), &migrationv1alpha1.StorageState{})
	if err != nil {
		return nil, err
	}
	c.notice(gr, state)
	if l.state = state; state != nil {
		view := migrationv1alpha1.ViewState(state)
		l.State = &view
	}
	if l.StorageVersion, l.aggregated, err = c.storageVersion(ctx, gr); err != nil {
		return nil, err
	}
	items, err := c.migrations(ctx, gr)
	if err != nil {
		return nil, err
	}
	for _, m := range items {
		l.migrations[m.Name] = m
		l.Migrations = append(l.Migrations, migrationv1alpha1.ViewMigration(m))
	}
	if err := c.lookAtCRD(ctx, l); err != nil {
		return nil, err
	}
	if l.State != nil {
		// Without a kind this cannot be checked: it is when a server serves the resource again.
		if kind, err := c.kind(ctx, l, *l.State); err == nil && kind != "" {
			l.State.Forged = migrationv1alpha1.Forged(state, kind)
		}
	}
	l.Now = c.cfg.Clock.Now()
	c.noteFailed(l)
	l.Settling = c.settling(l.Observation)
	if c.cfg.Policy != nil {
		l.Policy = c.cfg.Policy(l.Observation, l.crd)
	}
	return l, nil
}

func (c *Controller) storageVersion(ctx context.Context, gr schema.GroupResource) (view *evolve.StorageVersion, aggregated string, err error) {
	sv, err := get(ctx, c.cfg.Client, storageversion.Name(gr), &apiserverinternalv1alpha1.StorageVersion{})
	if sv == nil || err != nil {
		return nil, "", err
	}
	if storageversion.IsAggregated(sv) {
		aggregated = "true"
	}
	view, err = storageversion.View(sv)
	return view, aggregated, err
}

func (c *Controller) migrations(ctx context.Context, gr schema.GroupResource) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	if c.cached != nil {
		return c.cached(gr)
	}
	var list migrationv1alpha1.StorageVersionMigrationList
	if err := c.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list StorageVersionMigrations: %w", err)
	}
	var items []*migrationv1alpha1.StorageVersionMigration
	for i := range list.Items {
		if migrationv1alpha1.Resource(&list.Items[i]) == gr {
			items = append(items, &list.Items[i])
		}
	}
	return items, nil
}

// lookAtCRD reads the definition of a custom resource.
func (c *Controller) lookAtCRD(ctx context.Context, l *look) error {
	if l.Resource.Group == "" {
		return nil
	}
	crd, err := get(ctx, c.cfg.Client, l.Resource.String(), &apiextensionsv1.CustomResourceDefinition{})
	if crd == nil || err != nil {
		return err
	}
	l.crd = crd
	l.CRD = &evolve.CRD{Name: crd.Name, Storage: migrationv1alpha1.Stores(crd), StoredVersions: migrationv1alpha1.StoredVersions(crd), Held: migrationv1alpha1.Held(crd.Annotations), Deleted: crd.DeletionTimestamp != nil}
	for _, v := range crd.Spec.Versions {
		l.CRD.Versions = append(l.CRD.Versions, migrationv1alpha1.EncodingOf(crd, v.Name))
	}
	return nil
}

// lookCloser reads the facts that matter only to migrations that could begin, or that no server can do: which servers
// are still starting, and whether the resource exists where no report says that it is served.
func (c *Controller) lookCloser(ctx context.Context, l *look) error {
	leases, err := c.leases(ctx)
	if err != nil {
		return err
	}
	for i := range leases {
		lease := &leases[i]
		if storageversion.SilenceOf(lease) != "" || storageversion.IsAggregated(lease) {
			continue // it will never report, or nothing that is stored here
		}
		if lease.Annotations[storageversion.ReportedAnnotation] == "true" || lease.Spec.LeaseDurationSeconds == nil {
			continue
		}
		l.Starting = append(l.Starting, evolve.Starting{
			Server: agree.ServerID(lease.Name),
			Since:  lease.CreationTimestamp.Time,
			Lease:  time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second,
		})
	}
	if l.StorageVersion != nil && !l.NotServed() {
		return nil
	}
	switch _, err := c.cfg.Kinds.Kind(ctx, l.Resource); {
	case err == nil:
		l.Existence = evolve.Served
	case meta.IsNoMatchError(err):
		l.Existence = evolve.Missing
	default:
		c.cfg.Logger.V(1).Info("Discovery did not answer", "resource", l.Resource.String(), "reason", err.Error())
	}
	return nil
}

// leases are the identity Leases that stand for servers.
func (c *Controller) leases(ctx context.Context) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	err := c.cfg.Client.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities})
	if err != nil {
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	return storageversion.Servers(leases.Items), nil
}

// get reads an object; nil if it does not exist. An error that says no more than "not found"
// does not prove that. Nothing can have a name that clients refuse to ask for, as that of a
// subresource's StorageState would be.
func get[T client.Object](ctx context.Context, c client.Client, name string, obj T) (T, error) {
	var none T
	if len(content.IsPathSegmentName(name)) > 0 {
		return none, nil
	}
	switch err := c.Get(ctx, client.ObjectKey{Name: name}, obj); {
	case storageversion.IsGone(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("get %T %s: %w", obj, name, err)
	}
	return obj, nil
}
