// Package kube is the real kube-apiserver, the unmodified code of k8s.io/kubernetes, with the
// protocol wired in by package join.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeoptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/gates/ratchet"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/keyring"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
)

// Run serves until ctx ends, with options that are valid.
func Run(ctx context.Context, options kubeoptions.CompletedOptions, own *Options) error {
	s := &server{options: options, own: own}
	providers, stopProviders := context.WithCancel(context.Background())
	defer stopProviders()
	etcd, err := s.prepare(ctx, providers)
	if err != nil && ctx.Err() != nil {
		klog.FromContext(ctx).V(1).Info("Stopped before it served", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	gates.Announce(options.GenericServerRunOptions.ComponentGlobalsRegistry)
	return errors.Join(s.serve(ctx, etcd), etcd.Close())
}

// prepare makes the configuration, and checks what is stored. providers lasts as long as the server encrypts.
func (s *server) prepare(ctx, providers context.Context) (*join.Etcd, error) {
	if len(s.options.Etcd.EtcdServersOverrides) > 0 {
		return nil, errors.New("--etcd-servers-overrides is not supported: a resource in another etcd than its StorageVersion cannot be fenced; remove the flag")
	}
	var err error
	if s.options.InformerName == nil {
		if s.options.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
			return nil, err
		}
	}
	if s.ring, err = keyring.New(providers, s.keyring()); err != nil {
		return nil, err
	}
	// First whether etcd answers at all: kube-apiserver's own code waits for it without a word, and does not say why it gives up.
	// An egress selector for etcd is known only after that.
	if s.options.EgressSelector.ConfigFile == "" {
		etcd, err := join.Dial(ctx, s.options.Etcd.StorageConfig)
		if err != nil {
			return nil, err
		}
		if err := etcd.Close(); err != nil {
			return nil, err
		}
	}
	if err := s.configure(); err != nil {
		return nil, err
	}
	etcd, err := join.Dial(ctx, s.options.Etcd.StorageConfig)
	if err != nil {
		return nil, err
	}
	if err := s.checkStorage(ctx, etcd); err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	return etcd, nil
}

// server is a kube-apiserver that is assembled.
type server struct {
	options kubeoptions.CompletedOptions
	own     *Options
	config  *app.Config
	ring    *keyring.Ring
	plan    *compat.Plan
}

func (s *server) address() string {
	return net.JoinHostPort(s.options.SecureServing.BindAddress.String(), strconv.Itoa(s.options.SecureServing.BindPort))
}

func (s *server) keyring() keyring.Config {
	return keyring.Config{
		Path:   s.options.Etcd.EncryptionProviderConfigFilepath,
		Reload: s.options.Etcd.EncryptionProviderConfigAutomaticReload,
		Server: s.address(),
	}
}

// leaseCollector is upstream's hook that deletes identity Leases by the server's own clock, including Leases of live
// servers whose clocks are more than 15 s, the duration of their Leases, behind. Here only the protocol's collector
// judges whether a server lives.
const leaseCollector = "start-kube-apiserver-identity-lease-garbage-collector"

// configure makes the configurations of the servers of the chain as kube-apiserver does, except for encryption, which
// the keyring does, and the server's identity.
func (s *server) configure() error {
	// The key that encrypts a value has to be known when it is written: the keyring encrypts, not Kubernetes.
	s.options.Etcd.EncryptionProviderConfigFilepath, s.options.Etcd.EncryptionProviderConfigAutomaticReload = "", false
	peerCA := s.options.PeerCAFile
	s.options.PeerCAFile = ""
	var err error
	if s.config, err = app.NewConfig(s.options); err != nil {
		return err
	}
	if err := s.identify(peerCA); err != nil {
		return err
	}
	generic := s.config.KubeAPIs.ControlPlane.Generic
	if !s.own.Join.Silent { // a server that reports nothing runs no collector
		generic.DisabledPostStartHooks.Insert(leaseCollector)
	}
	version := gates.Reported(generic.EffectiveVersion, s.options.GenericServerRunOptions.ComponentGlobalsRegistry)
	generic.EffectiveVersion, s.config.Aggregator.GenericConfig.EffectiveVersion, s.config.ApiExtensions.GenericConfig.EffectiveVersion = version, version, version
	s.plan, err = planning.New(planning.Options{
		Effective:         generic.EffectiveVersion,
		RuntimeConfig:     s.options.APIEnablement.RuntimeConfig,
		ForwardCompatible: s.options.GenericServerRunOptions.EmulationForwardCompatible,
	})
	if err != nil {
		return err
	}
	crds := &s.config.ApiExtensions.GenericConfig.Config
	crds.AdmissionControl = ratchet.Admission(crds.AdmissionControl, s.options.GenericServerRunOptions.ComponentGlobalsRegistry.FeatureGateFor(gates.Concord), crds.FeatureGate)
	if err := planning.ApplyAPIs(s.plan, generic); err != nil {
		return err
	}
	return planning.ApplyStorage(s.plan, s.config.KubeAPIs.ControlPlane.StorageFactory)
}

// identify gives the process a name of its own in upstream's identity Lease, by which that is
// known not to be a server's that does not report, and makes the proxy to peers, which skips
// the server itself, with that name.
func (s *server) identify(peerCA string) error {
	control := &s.config.KubeAPIs.ControlPlane
	last := &s.config.Aggregator.GenericConfig.Config
	id := storageversion.NewUpstreamIdentity()
	control.Generic.APIServerID, last.APIServerID, s.config.ApiExtensions.GenericConfig.APIServerID = id, id, id
	if peerCA == "" || !utilfeature.DefaultFeatureGate.Enabled(genericfeatures.UnknownVersionInteroperabilityProxy) {
		return nil
	}
	peers, err := controlplaneapiserver.BuildPeerProxy(
		control.VersionedInformers.Coordination().V1().Leases(), control.Generic.LoopbackClientConfig,
		s.options.ProxyClientCertFile, s.options.ProxyClientKeyFile, peerCA, s.options.PeerAdvertiseAddress, id,
		control.PeerEndpointLeaseReconciler, control.Generic.Serializer, control.Generic.EgressSelector,
	)
	if err != nil {
		return fmt.Errorf("--peer-ca-file: %w", err)
	}
	control.PeerProxy, s.config.Aggregator.ExtraConfig.PeerProxy = peers, peers
	build := last.BuildHandlerChainFunc
	last.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(peers.WrapHandler(handler), c)
	}
	return nil
}

// checkStorage refuses to start on stored values that the server could not decode or open.
func (s *server) checkStorage(ctx context.Context, etcd *join.Etcd) error {
	return stored.Start{
		Layout: stored.Layout{Prefix: s.options.Etcd.StorageConfig.Prefix, Special: kubeapiserver.SpecialDefaultResourcePrefixes},
		Target: s.plan.Target(), Keys: s.ring.Keys(), Allow: s.own.AllowUndecodableStorage,
		Decode: stored.Decodes(planning.Schemes...),
	}.Check(ctx, migratestore.NewEtcd(etcd.Client()))
}

// serve joins the cluster and serves until ctx ends.
func (s *server) serve(ctx context.Context, etcd *join.Etcd) error {
	control := s.config.KubeAPIs.ControlPlane
	config := s.own.Join
	config.Loopback, config.Address = control.Generic.LoopbackClientConfig, s.address()
	config.Etcd = s.options.Etcd.StorageConfig
	config.EnableWatchCache, config.WatchCacheSizes = s.options.Etcd.EnableWatchCache, s.options.Etcd.WatchCacheSizes
	config.Schemes = planning.Schemes
	config.Keyring = s.ring
	config.Binary, config.Emulation, config.MinCompatibility = s.plan.Binary, s.plan.Emulation, s.plan.MinCompatibility
	config.Kinds = planning.Kinds(s.plan)
	var err error
	if config.RBAC, err = planning.ByRBAC(s.options.Authorization); err != nil {
		return err
	}
	j, err := join.NewOn(etcd, config)
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }() // the etcd's own end is looked at
	j.Storage(control.Generic)
	j.Storage(&s.config.ApiExtensions.GenericConfig.Config)
	j.CustomResources(&s.config.ApiExtensions.ExtraConfig)
	j.Storage(&s.config.Aggregator.GenericConfig.Config)
	j.Handlers(&s.config.Aggregator.GenericConfig.Config)
	completed, err := s.config.Complete()
	if err != nil {
		return err
	}
	chain, err := app.CreateServerChain(completed)
	if err != nil {
		return err
	}
	if err := j.Start(chain.GenericAPIServer); err != nil {
		return err
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return err
	}
	return j.Run(ctx, prepared.Run)
}
