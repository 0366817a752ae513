// Package fence puts the permission to write into every write transaction.
//
// It provides the storage decorator through which built-in and custom resources alike
// get their storage. A store is built for one encoding; each of its puts also compares
// the etcd revision of the resource's StorageVersion with the one at which this server's
// report for that encoding was seen. A server that is not in the StorageVersion, or is
// in it with another encoding, cannot write, however late the request arrives. Deletes
// write no value and carry no fence.
package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// Permits knows where this server's reports stand.
type Permits interface {
	// Revision returns the etcd revision of the resource's StorageVersion at which this server's report for the
	// encoding stands; it is positive. An error is final for the call that wants to write: it wraps
	// agree.ErrSuperseded if the server reports another, newer encoding, and is a 503 of apimachinery's errors with
	// RetryAfterSeconds otherwise.
	Revision(ctx context.Context, gr schema.GroupResource, enc agree.Encoding) (int64, error)
	// Moved reports that a transaction at etcd revision at wrote nothing, because it found the StorageVersion as
	// written at revision mod, with these reports; mod is 0 if it does not exist. Nil means that the write may be
	// tried again; errors are those of Revision.
	Moved(ctx context.Context, gr schema.GroupResource, enc agree.Encoding, at, mod int64, reports []agree.Report) error
}

// defaultForwardTimeout bounds how long a call on a superseded store waits for the newer
// store to be built before it answers 503.
const defaultForwardTimeout = 5 * time.Second

// Config configures a Fence.
type Config struct {
	// Client is the connection that all stores share, and not one to an etcd in this process,
	// which has none. It stays its owner's to close, after Fence.Close.
	Client *clientv3.Client
	// Permits answers for this server's reports.
	Permits Permits

	// Uncached names the resources that never get a watch cache, like events upstream.
	Uncached sets.Set[schema.GroupResource]
	// CompactionInterval is how often old revisions are compacted; 0 means never.
	CompactionInterval time.Duration
	// Clock is the real one by default.
	Clock clock.WithTicker
}

// Validate names the first field without which New cannot work.
func (c Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.New("fence: Config.Client is missing")
	case c.Client.ActiveConnection() == nil:
		return errors.New("fence: Config.Client has no connection")
	case c.Permits == nil:
		return errors.New("fence: Config.Permits is missing")
	case c.CompactionInterval < 0:
		return fmt.Errorf("fence: Config.CompactionInterval is negative: %s", c.CompactionInterval)
	}
	return nil
}

// Fence builds the stores of one API server and knows them all.
type Fence struct {
	client         *clientv3.Client
	kv             clientv3.KV
	compactor      etcd3.Compactor // nil: nothing is compacted
	stop           func()          // ends it
	permits        Permits
	unfenced       sets.Set[schema.GroupResource] // the resources whose puts carry no compare
	uncached       sets.Set[schema.GroupResource]
	forwardTimeout time.Duration
	clock          clock.WithTicker
	versions       *storageVersions
	registry       *registry
	caches         watchCaches
}

// New starts the compactor and returns a Fence without stores.
func New(cfg Config) (*Fence, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	registerMetrics()
	f := &Fence{
		client:         cfg.Client,
		kv:             etcd3.NewETCDLatencyTracker(cfg.Client.KV),
		permits:        cfg.Permits,
		unfenced:       storageversion.Unfenced(),
		uncached:       cfg.Uncached,
		forwardTimeout: defaultForwardTimeout,
		clock:          cfg.Clock,
		versions:       &storageVersions{decoder: storageVersionDecoder},
		registry:       newRegistry(),
	}
	if cfg.CompactionInterval > 0 {
		// Not StartCompactorPerEndpoint: that one is shared by all servers of a process
		// and dies with the client of the first of them.
		compactor := etcd3.NewCompactor(cfg.Client, cfg.CompactionInterval, cfg.Clock, nil)
		f.compactor, f.stop = compactor, compactor.Stop
	}
	// The stores' own clients have no endpoints to be checked, so the shared one is.
	feature.DefaultFeatureSupportChecker.CheckClient(cfg.Client.Ctx(), cfg.Client, storage.RequestWatchProgress)
	return f, nil
}

// Close stops the compactor. The stores have been destroyed before.
func (f *Fence) Close() {
	if f.stop != nil {
		f.stop()
	}
}

// FenceKey returns the etcd key of the resource's StorageVersion. It is not known, and
// false is returned, before the storage of StorageVersions itself was built.
func (f *Fence) FenceKey(gr schema.GroupResource) (string, bool) { return f.versions.key(gr) }

// Newest returns the store of the resource that was built last. Of a custom resource's
// stores, one per served version, it is the one whose served version is the encoding,
// where there is one.
func (f *Fence) Newest(gr schema.GroupResource) (Store, bool) {
	e, ok := f.registry.newest(gr)
	if !ok {
		return Store{}, false
	}
	return e.Store, true
}

// Builtins returns the newest store of every built-in resource, sorted by group and resource.
func (f *Fence) Builtins() []Store {
	var stores []Store
	for _, e := range f.registry.builtins() {
		stores = append(stores, e.Store)
	}
	return stores
}
