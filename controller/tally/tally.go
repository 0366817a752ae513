// Package tally turns the contents of StorageStates, migrations and identity Leases into metrics
// for alerts and dashboards: which resources the servers do not agree on, how far migrations are,
// which encryption keys are needed, and which server's Lease has not been renewed. It runs on the
// elected server, or in the elected process of the controllers for stock clusters; the others show nothing.
package tally

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

const (
	// interval is the time between two counts.
	interval = 10 * time.Second
	// stepTimeout bounds one Step of Run, in real time.
	stepTimeout = 30 * time.Second
)

// Config configures a Controller.
type Config struct {
	// Kept returns all StorageStates and migrations.
	Kept func(context.Context) ([]migrationv1alpha1.StorageState, []migrationv1alpha1.StorageVersionMigration, error)
	// Client lists Leases.
	Client client.Reader
	// Metrics shows the counts.
	Metrics *Metrics
	// Logger is silent by default.
	Logger logr.Logger
}

// Controller counts.
type Controller struct{ cfg Config }

// New returns a Controller; it does nothing by itself.
func New(cfg Config) *Controller { return &Controller{cfg} }

// Run counts until ctx ends; then nothing is shown any more.
func (c *Controller) Run(ctx context.Context) {
	defer c.cfg.Metrics.show(nil)
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		defer cancel()
		if err := c.Step(step); err != nil && ctx.Err() == nil {
			// The last counts stay, because an alert would otherwise see that all is well.
			c.cfg.Logger.Error(err, "Metrics of StorageStates and migrations are not up to date")
		}
	}, interval, 0.1, false)
}

// Step counts once.
func (c *Controller) Step(ctx context.Context) error {
	states, migrations, err := c.cfg.Kept(ctx)
	if err != nil {
		return err
	}
	var leases coordinationv1.LeaseList
	// Any server's cache is good enough, and cheap.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	if err := c.cfg.Client.List(ctx, &leases, cached, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities}); err != nil {
		return fmt.Errorf("list identity Leases: %w", err)
	}
	c.cfg.Metrics.show(count(states, migrations, storageversion.Servers(leases.Items)))
	return nil
}
