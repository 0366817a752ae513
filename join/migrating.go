package join

import (
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/join/internal/engines"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/migrate/claim"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// migrating does migrations, of this server's turn or a user's.
type migrating struct {
	claim   *claim.Controller // nil in a server that reports nothing, and in an aggregated one
	counts  *claim.Metrics
	engines *engines.Engines
}

// newMigrating makes the controller that claims migrations, and both engines.
func (j *Join) newMigrating() error {
	m := &migrating{engines: engines.New(engines.Config{
		KV: migratestore.NewEtcd(j.etcd.client), Fence: j.storing.fence, Keyring: j.config.Keyring, Convert: j.crds.convert,
		Clients: j.clientLoad, MaxAddedLatency: j.config.MigrationMaxAddedLatency, MaxObjectsPerSecond: j.config.MigrationMaxObjectsPerSecond,
	})}
	j.migrating = m
	if j.config.Silent || j.hosting != nil {
		return nil // the host migrates the objects that an aggregated server stores, through its API
	}
	var err error
	if m.counts, err = migrationMetrics(); err != nil {
		return err
	}
	own, err := j.clients.as(roles.Migrator)
	if err != nil {
		return err
	}
	patcher, err := j.clients.as(roles.Patcher)
	if err != nil {
		return err
	}
	api, elsewhere, err := m.engines.API(own.config, j.inProcess.Config(patcher.config))
	if err != nil {
		return err
	}
	m.claim = claim.New(claim.Config{
		Client:    own.objects,
		ID:        j.reporting.member.ID,
		Rewriter:  m.engines,
		API:       api,
		Elsewhere: elsewhere,
		Metrics:   m.counts,
		Logger:    klog.Background().WithName("migrate"),
	})
	return nil
}
