package join

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/join/internal/engines"
	"github.com/concord-dev/concord/join/internal/inprocess"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// migrating does migrations, of this server's turn or a user's.
type migrating struct {
	claim   *claim.Controller // nil in a server that reports nothing, and in an aggregated one
	engines *engines.Engines
}

// newEngines makes both engines. They give way to load.
func newEngines(config Config, stores *storing, resources *convert.Resources, load pace.Clients) *engines.Engines {
	return engines.New(engines.Config{
		KV: migratestore.NewEtcd(stores.etcd), Fence: stores.fence, Keyring: config.Keyring, Convert: resources,
		Clients: load, MaxAddedLatency: config.MigrationMaxAddedLatency, MaxObjectsPerSecond: config.MigrationMaxObjectsPerSecond,
	})
}

// newMigrating makes the controller that claims migrations for the server with this ID. Its patches stay in the process.
func newMigrating(config Config, clients *clients, e *engines.Engines, inProcess *inprocess.Transport, id func() agree.ServerID) (*migrating, error) {
	m := &migrating{engines: e}
	if config.Silent || config.Host != nil {
		return m, nil // the host migrates the objects that an aggregated server stores, through its API
	}
	counts, err := migrationMetrics()
	if err != nil {
		return nil, err
	}
	own, err := clients.as(roles.Migrator)
	if err != nil {
		return nil, err
	}
	patcher, err := clients.as(roles.Patcher)
	if err != nil {
		return nil, err
	}
	api, elsewhere, err := e.API(own.config, inProcess.Config(patcher.config))
	if err != nil {
		return nil, err
	}
	m.claim = claim.New(claim.Config{
		Client:    own.objects,
		ID:        id,
		Rewriter:  e,
		API:       api,
		Elsewhere: elsewhere,
		Metrics:   counts,
		Logger:    klog.Background().WithName("migrate"),
	})
	return m, nil
}

// observe takes in that a definition has changed.
func (m *migrating) observe(is *apiextensionsv1.CustomResourceDefinition) {
	if m.claim != nil {
		m.claim.ObserveDefinition(is)
	}
}
