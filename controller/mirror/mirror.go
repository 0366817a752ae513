// Package mirror lets the controllers of migration.k8s.io do the StorageVersionMigrations of storagemigration.k8s.io,
// Kubernetes' own API. For each of these it creates a copy in migration.k8s.io, and writes the state of the copy into
// the original's status. The copy is adopted, claimed and counted like any user's migration. It is deleted with the
// original, so that deleting the original cancels the migration. Finished migrations stay until somebody deletes them.
package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// ErrLeft says that a migration is left to another migrator.
var ErrLeft = errors.New("the migration is left to another migrator")

// Config configures a Controller.
type Config struct {
	// Client reads and writes API objects, uncached. Its scheme must hold the
	// migrations of migration.k8s.io, and storagemigration/v1's types under the version of
	// storagemigration.k8s.io that is served: all its versions have one form.
	Client client.WithWatch
	// Served is that version.
	Served schema.GroupVersion
	// May is asked before a migration gets its first status and a copy. If it returns an error, neither is written,
	// and it is asked again later; an error that wraps ErrLeft is expected. Nil: it is always allowed. It has to ask
	// the API each time, because kube-controller-manager's migrator does not start a migration whose status has a
	// condition Running that is False, and that condition is written first.
	May func(context.Context) error
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Logger defaults to none.
	Logger logr.Logger
}

// Controller mirrors migrations. Two that run at a time do no harm.
type Controller struct {
	cfg Config
	// copies lists the copies of the migration of this name.
	copies func(ctx context.Context, name string) ([]*migrationv1alpha1.StorageVersionMigration, error)
}

// New returns a Controller; it does nothing by itself.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.May == nil {
		cfg.May = func(context.Context) error { return nil }
	}
	c := &Controller{cfg: cfg}
	c.copies = c.list
	return c
}

// Step looks once at the migration of storagemigration.k8s.io of this name and acts. After
// an error, Conflicts included, the look has to be repeated; what was done stands.
func (c *Controller) Step(ctx context.Context, name string) error {
	original := &storagemigrationv1.StorageVersionMigration{}
	switch err := c.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, original); {
	case storageversion.IsGone(err):
		original = nil
	case err != nil:
		return fmt.Errorf("get %s %s: %w", c.cfg.Served.Group, name, err)
	}
	copies, err := c.copies(ctx, name)
	if err != nil {
		return err
	}
	p := decide(c.cfg.Served, original, copies, metav1.NewTime(c.cfg.Clock.Now()))
	for _, m := range p.remove {
		err := c.cfg.Client.Delete(ctx, m, client.Preconditions{UID: &m.UID})
		if err != nil && !storageversion.IsGone(err) {
			return fmt.Errorf("delete migration %s: %w", m.Name, err)
		}
		c.cfg.Logger.Info("Migration cancelled, as what it was made for is gone", "migration", m.Name, "original", name)
	}
	if err := c.rest(ctx, name, p.ended); err != nil {
		return err
	}
	if p.create != nil && !taken(original) {
		if err := c.cfg.May(ctx); err != nil {
			return err
		}
	}
	if p.status != nil {
		original.Status = *p.status
		if err := c.cfg.Client.Status().Update(ctx, original); err != nil {
			return fmt.Errorf("write the status of %s: %w", name, err)
		}
	}
	if p.create != nil {
		// A copy that the watch has not shown yet is no error.
		if err := c.cfg.Client.Create(ctx, p.create); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create migration %s: %w", p.create.Name, err)
		}
	}
	return nil
}

// rest has the definition of a resource, if it has one, not say any more that the migration of
// this name runs.
func (c *Controller) rest(ctx context.Context, name string, of *schema.GroupResource) error {
	if of == nil || of.Group == "" {
		return nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.cfg.Client.Get(ctx, client.ObjectKey{Name: of.String()}, crd); err != nil {
		if storageversion.IsGone(err) {
			return nil
		}
		return fmt.Errorf("get definition %s: %w", of, err)
	}
	if !rest(crd, name, metav1.NewTime(c.cfg.Clock.Now())) {
		return nil
	}
	if err := c.cfg.Client.Status().Update(ctx, crd); err != nil {
		return fmt.Errorf("write the status of definition %s: %w", of, err)
	}
	return nil
}

// list asks the API for the copies.
func (c *Controller) list(ctx context.Context, name string) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	var all migrationv1alpha1.StorageVersionMigrationList
	if err := c.cfg.Client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var copies []*migrationv1alpha1.StorageVersionMigration
	for i := range all.Items {
		if ref := migrationv1alpha1.Original(&all.Items[i]); ref != nil && ref.Name == name {
			copies = append(copies, &all.Items[i])
		}
	}
	return copies, nil
}
