// Package join makes an API server that is built on k8s.io/apiserver a member of a Concord
// cluster: it reports in which version it stores every resource, lets no write in before that
// is known, fences every write, migrates stored objects and leaves in good order. It compiles
// nothing of k8s.io/kubernetes.
//
// A server joins by a few calls between its configuration and its start:
//
//	j, err := join.New(ctx, config)       // connects to etcd
//	j.Storage(&c.Config)                  // for the config of each server of the delegation chain
//	j.CustomResources(&extensions)        // if the server stores custom resources
//	j.Handlers(&last.Config)              // for the config of the last server, whose handlers run
//	server, err := last.Complete().New()  // as ever
//	err = j.Start(server)                 // before PrepareRun
//	defer j.Close()                       // after Run
//
// Start serves the StorageVersions, whose strategy keeps the epoch, adds the post-start and pre-shutdown hooks and the
// readiness check, and runs the controllers while this server is elected.
//
// An aggregated API server, which keeps its objects in its own etcd, sets Config.Host (Config.Aggregated does that).
// The same then happens in that etcd, with StorageVersions and identity Leases that are served to the process only. In
// addition the server reports to the host cluster, which migrates the objects.
package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/build"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join/internal/clientload"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/join/internal/inprocess"
	"github.com/concord-dev/concord/join/internal/local"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
)

// Config says how a server takes part. A field has to be set unless its text names a default, or what nil, 0 or empty means.
type Config struct {
	// Host reaches the cluster that an aggregated API server belongs to. Such a server takes part in the protocol in
	// its own etcd, and also reports to its host. Default nil: the server belongs to a control plane.
	Host *rest.Config
	// Loopback reaches the server itself, as system:apiserver of system:masters. It is not
	// needed where Host is set.
	Loopback *rest.Config
	// Address is where the server serves, "host:port". It names the process in elections.
	Address string
	// Etcd is how the server stores objects (--etcd-servers, --etcd-prefix, …), that is
	// EtcdOptions.StorageConfig of k8s.io/apiserver.
	Etcd storagebackend.Config
	// EnableWatchCache and WatchCacheSizes are EtcdOptions' fields of these names.
	EnableWatchCache bool
	WatchCacheSizes  []string
	// EtcdServersOverrides is EtcdOptions' field of this name. It has to be empty: a resource in another
	// etcd than its StorageVersion cannot be fenced.
	EtcdServersOverrides []string
	// Uncached lists resources without a watch cache, in addition to events and StorageVersions; default none.
	Uncached sets.Set[schema.GroupResource]
	// Schemes know the kinds of all built-in resources that the server stores, and so in which
	// versions it can read them.
	Schemes []*runtime.Scheme
	// Keyring has the keys by which stored values are encrypted; default nil: nothing is encrypted. A
	// changed file is looked for, and KMS plugins are asked which key they use, every
	// KeyringInterval; default 10 s.
	Keyring         *keyring.Ring
	KeyringInterval time.Duration

	// Binary, Emulation and MinCompatibility are the server's versions (KEP-4330).
	Binary, Emulation, MinCompatibility *version.Version
	// Kinds are the kinds of built-in resources that servers of other releases may serve and
	// this one does not; default none.
	Kinds map[schema.GroupResource]string
	// Silent has the server report nothing and erase all StorageVersions before it serves, as
	// with the feature gate StorageVersionAPI off; default false.
	Silent bool

	// IdentityLeaseDuration is how long the server counts as alive without a renewal, in whole
	// seconds; default 15 s. IdentityLeaseRenewInterval is the time between renewals; default
	// a third of it.
	IdentityLeaseDuration, IdentityLeaseRenewInterval time.Duration
	// NoControllers keeps this server from being elected to run the controllers; default false.
	NoControllers bool
	// ControllerLeaseDuration is how long an elected server stays so without a renewal;
	// default 6 s.
	ControllerLeaseDuration time.Duration
	// RBAC says that the server authorizes by RBAC. Each controller then acts as a user of its own (package
	// join/roles), whose roles are created at the start. Default false: all act as the loopback user.
	RBAC bool
	// RequestsPerCPU is how many requests may be under way for each CPU (GOMAXPROCS) while goroutines wait for one, not
	// counting those that have lasted 50 ms. Of the others that priority and fairness has admitted, priority levels and
	// their flows take turns. Beside them as many again are under way for flows that have no other. Negative: no bound;
	// default 2. A server without priority and fairness has no bound.
	RequestsPerCPU int
	// MigrationMaxAddedLatency is by how much a migration may lengthen the slower requests of
	// this server's clients, 0 for full speed; nil for half of what they take without it, and
	// never less than 2 ms. MigrationMaxObjectsPerSecond bounds what it writes, 0 for no bound.
	// A migration can say otherwise for itself.
	MigrationMaxAddedLatency     *time.Duration
	MigrationMaxObjectsPerSecond int
	// MigrationSettle is for how long after a server that does not report has gone no migration
	// begins: longer than such a server completes requests, since it deletes its identity Lease
	// before; default 75 s.
	MigrationSettle time.Duration
}

const (
	defaultIdentityLeaseDuration   = 15 * time.Second
	defaultControllerLeaseDuration = 6 * time.Second
	defaultKeyringInterval         = 10 * time.Second
	// defaultRequestsPerCPU lets one request compute while another one waits for etcd.
	defaultRequestsPerCPU = 2
	// defaultMigrationSettle is kube-apiserver's default --request-timeout, and some more.
	defaultMigrationSettle = 75 * time.Second
)

func (c Config) withDefaults() Config {
	c.IdentityLeaseDuration = cmp.Or(c.IdentityLeaseDuration, defaultIdentityLeaseDuration)
	c.IdentityLeaseRenewInterval = c.renewInterval()
	c.ControllerLeaseDuration = cmp.Or(c.ControllerLeaseDuration, defaultControllerLeaseDuration)
	c.KeyringInterval = cmp.Or(c.KeyringInterval, defaultKeyringInterval)
	c.MigrationSettle = cmp.Or(c.MigrationSettle, defaultMigrationSettle)
	c.RequestsPerCPU = cmp.Or(c.RequestsPerCPU, defaultRequestsPerCPU)
	return c
}

// renewInterval is the time between renewals with its default.
func (c Config) renewInterval() time.Duration {
	return cmp.Or(c.IdentityLeaseRenewInterval, c.IdentityLeaseDuration/3)
}

// Validate returns an error of one line for the first field that New cannot work with.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Loopback == nil && c.Host == nil:
		return errors.New("join: Config.Loopback is missing, and Config.Host, which an aggregated server needs in its place: outside of a cluster give it --kubeconfig")
	case c.Silent && c.Host != nil:
		return errors.New("join: Config.Silent is not for an aggregated server, which reports nothing if it does not join")
	case c.Address == "":
		return errors.New("join: Config.Address is missing")
	case len(c.Etcd.Transport.ServerList) == 0:
		return errors.New("join: Config.Etcd names no etcd servers")
	case len(c.EtcdServersOverrides) > 0:
		return errors.New("--etcd-servers-overrides is not supported: a resource in another etcd than its StorageVersion cannot be fenced; remove the flag")
	case len(c.Schemes) == 0:
		return errors.New("join: Config.Schemes is empty")
	case c.Binary == nil || c.Emulation == nil || c.MinCompatibility == nil:
		return errors.New("join: Config.Binary, Emulation or MinCompatibility is missing: an aggregated server sets EffectiveVersion of its configuration before Join")
	}
	if _, err := genericoptions.ParseWatchCacheSizes(c.WatchCacheSizes); err != nil {
		return fmt.Errorf("--watch-cache-sizes: %w", err)
	}
	return c.ValidateFlags()
}

// ValidateFlags is Validate for the fields that have flags.
func (c Config) ValidateFlags() error {
	c.IdentityLeaseRenewInterval = c.renewInterval()
	switch {
	case c.ControllerLeaseDuration < time.Second || c.ControllerLeaseDuration%time.Second != 0:
		return fmt.Errorf("--controller-lease-duration %v is not allowed: whole seconds, at least 1s", c.ControllerLeaseDuration)
	case c.IdentityLeaseDuration < time.Second || c.IdentityLeaseDuration%time.Second != 0:
		return fmt.Errorf("--identity-lease-duration %v is not allowed: whole seconds, at least 1s", c.IdentityLeaseDuration)
	case c.IdentityLeaseRenewInterval <= 0 || c.IdentityLeaseRenewInterval > c.IdentityLeaseDuration/2:
		return fmt.Errorf("--identity-lease-renew-interval %v must be above 0 and at most half of --identity-lease-duration %v", c.IdentityLeaseRenewInterval, c.IdentityLeaseDuration)
	case c.KeyringInterval <= 0:
		return fmt.Errorf("--encryption-provider-config-reload-interval %v must be above 0", c.KeyringInterval)
	case c.MigrationMaxAddedLatency != nil && *c.MigrationMaxAddedLatency < 0:
		return fmt.Errorf("--migration-max-added-latency %v must not be negative", *c.MigrationMaxAddedLatency)
	case c.MigrationMaxObjectsPerSecond < 0:
		return fmt.Errorf("--migration-max-objects-per-second %d must not be negative", c.MigrationMaxObjectsPerSecond)
	case c.MigrationSettle <= 0:
		return fmt.Errorf("--migration-settle %v must be above 0", c.MigrationSettle)
	}
	return nil
}

func (c Config) versions() member.Versions {
	return member.Versions{Binary: c.Binary.String(), Emulation: c.Emulation.String(), MinCompatibility: c.MinCompatibility.String(), Build: build.This().ID()}
}

func (c Config) window() compat.Window {
	return compat.Window{Emulation: c.Emulation, MinCompatibility: c.MinCompatibility}
}

// Join is one server's part in the protocol. Its methods are called in the order of the
// package's example, by one goroutine.
type Join struct {
	config  Config
	etcd    *Etcd
	clients *clients

	reporting *reporting
	// hosting is nil but in an aggregated server.
	hosting *hosting.Host
	// local serves an aggregated server its own StorageVersions and Leases.
	local     *local.API
	storing   *storing
	crds      *definitions
	bootstrap *bootstrap
	migrating *migrating
	counting  *counting
	leading   *leading
	running   *running
	inProcess inprocess.Transport
	started   atomic.Bool // by Start
	// clientLoad shows migrations whether they have to give way.
	clientLoad *clientload.Clients
}

// New connects to etcd and makes the parts. Nothing runs yet.
func New(ctx context.Context, config Config) (*Join, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	etcd, err := Dial(ctx, config.Etcd)
	if err != nil {
		return nil, err
	}
	j, err := NewOn(etcd, config)
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	return j, nil
}

// NewOn is New for a caller that is connected to etcd already. Close ends the connection.
func NewOn(etcd *Etcd, config Config) (*Join, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	j := &Join{config: config.withDefaults(), etcd: etcd, clientLoad: clientload.New(clock.RealClock{})}
	var err error
	if j.config.Host != nil {
		if j.hosting, j.local, err = newHosting(j.config); err != nil {
			return nil, err
		}
		j.config.Loopback = j.local.Config()
	}
	if j.clients, err = newClients(j.config); err != nil {
		return nil, err
	}
	if j.crds, err = newDefinitions(j.clients, convert.New(j.clients.objects, j.config.Loopback)); err != nil {
		return nil, err
	}
	if j.reporting, err = newReporting(j.config, etcd, j.clients, j.hosting, j.crds); err != nil {
		return nil, err
	}
	if j.storing, err = newStoring(j.config, etcd.client, j.reporting.member, j.hosting); err != nil {
		return nil, err
	}
	j.crds.fence = j.storing.fence
	j.bootstrap = &bootstrap{config: j.config, clients: j.clients, crds: j.crds}
	engines := newEngines(j.config, j.storing, j.crds.convert, j.clientLoad)
	if j.migrating, err = newMigrating(j.config, j.clients, engines, &j.inProcess, j.reporting.member.ID); err != nil {
		return nil, err
	}
	j.counting = &counting{storing: j.storing, crds: j.crds, clients: j.clients, engines: engines}
	if j.leading, err = newLeading(j.config, j.clients, j.bootstrap, j.hosting, j.reporting.awaitRegistered, j.counting); err != nil {
		return nil, err
	}
	j.running = newRunning(j.config.Silent, etcd, j.reporting, j.loops)
	return j, nil
}

// Ready returns an error of one line that names the built-in resources which the server has not
// reported yet; nil if it has reported all.
func (j *Join) Ready() error { return j.reporting.ready() }

// Reported says whether the server has reported all that it has to, custom resources too.
func (j *Join) Reported() bool { return j.reporting.member.AllReported() }

// Close ends the remaining goroutines of a server that has stopped, and the connection to etcd.
func (j *Join) Close() error {
	var err error
	if j.hosting != nil {
		j.hosting.Close()
		err = j.local.Stop()
	}
	if j.storing.fence != nil {
		j.storing.fence.Close()
	}
	return errors.Join(err, j.etcd.Close())
}
