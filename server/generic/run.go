package generic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of clients and work queues, as kube-apiserver has them
	"k8s.io/klog/v2"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/keyring"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/server/controllers"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/workers"
)

const (
	// closeTimeout limits how long a stopping server waits for connections to close. All requests are answered by
	// then: what is left are connections without a request, for which net/http would wait 5 s, and connections that
	// net/http does not ask to close.
	closeTimeout = 2 * time.Second
	// endTimeout bounds how long it waits for Kubernetes' controllers.
	endTimeout = 10 * time.Second
)

// Server is one running API server.
type Server struct {
	address    string
	kubeconfig string
}

// Address is the host and port at which clients on its host reach it.
func (s *Server) Address() string { return s.address }

// Kubeconfig is the administrator's kubeconfig for it.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// surviveControllers has panics in the workers of Kubernetes' controllers logged, and the workers go
// on. There they end the process, which is the controllers' alone; here they would end the server.
var surviveControllers = sync.OnceFunc(func() { utilruntime.ReallyCrash = false })

// Run starts the server that completed options describe and serves until ctx ends; then
// it drains and returns. serving is called once the port answers.
func Run(ctx context.Context, o *Options, serving func(*Server)) (err error) {
	// client-go logs warnings that servers send; the server's own clients need none.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	surviveControllers()
	if err := o.checkFiles(); err != nil {
		return err
	}
	// The port first: a taken one is found before anything is made.
	listening := o.serving()
	if listening.Listener, listening.BindPort, err = openPort(listening.SecureServingOptions); err != nil {
		return err
	}
	served := false
	defer func() {
		if !served { // else the library has closed it, or still serves on it in a process that ends
			_ = listening.Listener.Close()
		}
	}()
	providers, stopProviders := context.WithCancel(context.Background())
	defer stopProviders()
	ring, err := keyring.New(providers, o.keyring())
	if err != nil {
		return err
	}
	stop, err := o.embedEtcd(ctx)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	etcd, err := join.Dial(ctx, o.etcd().StorageConfig)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	if err := o.checkStorage(ctx, etcd, ring); err != nil {
		return unlessStopped(ctx, err)
	}
	served = true
	gates.Announce(o.registry())
	return o.serve(ctx, etcd, ring, serving)
}

// checkStorage refuses to start on stored values that the server could not decode or open.
func (o *Options) checkStorage(ctx context.Context, etcd *join.Etcd, ring *keyring.Ring) error {
	return stored.Start{
		Layout: o.layout(), Target: o.plan.Target(), Keys: ring.Keys(), Allow: o.AllowUndecodableStorage,
		Decode: stored.Decodes(planning.Schemes...),
	}.Check(ctx, migratestore.NewEtcd(etcd.Client()))
}

// layout says where objects are in etcd.
func (o *Options) layout() stored.Layout {
	return stored.Layout{Prefix: o.etcd().StorageConfig.Prefix, Special: kubeapiserver.SpecialDefaultResourcePrefixes}
}

// serve assembles the server on its etcd and runs it.
func (o *Options) serve(ctx context.Context, etcd *join.Etcd, ring *keyring.Ring, serving func(*Server)) error {
	certs, err := o.ensureCertificates()
	if err != nil {
		return err
	}
	completed, err := o.library(ctx, certs)
	if err != nil {
		return err
	}
	c, err := o.newConfigs(completed)
	if err != nil {
		return err
	}
	if err := o.publishFrontProxy(c, certs); err != nil {
		return err
	}
	config := o.join(c, ring)
	if config.RBAC, err = planning.ByRBAC(o.ControlPlane.Authorization); err != nil {
		return err
	}
	j, err := join.NewOn(etcd, config)
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }() // the etcd's own end is looked at
	j.Storage(c.controlPlane.Generic)
	j.Storage(&c.extensions.GenericConfig.Config)
	j.CustomResources(&c.extensions.ExtraConfig)
	j.Storage(&c.aggregator.GenericConfig.Config)
	j.Handlers(&c.aggregator.GenericConfig.Config)
	chain, err := newChain(c, ctx.Done())
	if err != nil {
		return err
	}
	if err := j.Start(chain.GenericAPIServer); err != nil {
		return err
	}
	if err := o.addHooks(chain, c, certs, config.RBAC, serving); err != nil {
		return err
	}
	return run(ctx, chain, c.controlPlane.Generic.LoopbackClientConfig, j)
}

// join is the server's part in the protocol.
func (o *Options) join(c *configs, ring *keyring.Ring) join.Config {
	config := o.Join
	config.Loopback, config.Address = c.controlPlane.Generic.LoopbackClientConfig, o.address()
	config.Etcd = o.etcd().StorageConfig
	config.EnableWatchCache, config.WatchCacheSizes = o.etcd().EnableWatchCache, o.etcd().WatchCacheSizes
	// There are no nodes whose Leases would be many.
	config.Uncached = sets.New(schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"})
	config.Schemes = planning.Schemes
	config.Keyring = ring
	config.Binary, config.Emulation, config.MinCompatibility = o.plan.Binary, o.plan.Emulation, o.plan.MinCompatibility
	config.Kinds = planning.Kinds(o.plan)
	return config
}

// addHooks starts the background work that runs with the server.
func (o *Options) addHooks(chain *aggregatorapiserver.APIAggregator, c *configs, certs *pki.Certificates, rbac bool, serving func(*Server)) error {
	last := chain.GenericAPIServer
	// Requests are waited for elsewhere.
	last.ShutdownTimeout = closeTimeout
	if !o.Join.NoControllers {
		if err := o.addControllers(last, c, certs, rbac); err != nil {
			return err
		}
	}
	if err := last.AddPostStartHook("concord-certificates", func(hook genericapiserver.PostStartHookContext) error {
		go workers.Loop(hook, "certificates", certs.Renew)
		return nil
	}); err != nil {
		return err
	}
	if serving == nil {
		return nil
	}
	return last.AddPostStartHook("concord-serving", func(genericapiserver.PostStartHookContext) error {
		serving(&Server{address: certs.Address(), kubeconfig: certs.AdminKubeconfig})
		return nil
	})
}

// addControllers runs Kubernetes' controllers while this server is elected. They end before
// the server stops to listen, so that it can give up the lock.
func (o *Options) addControllers(last *genericapiserver.GenericAPIServer, c *configs, certs *pki.Certificates, rbac bool) error {
	given := o.serving().ServerCert.CertKey.CertFile
	if given == certs.CertFile {
		given = ""
	}
	root, err := rootCA(o.RootCAFile, certs.CAFile, given)
	if err != nil {
		return err
	}
	config := controllers.Config{
		Client:     join.AsComponent(c.controlPlane.Generic.LoopbackClientConfig, compat.ConcordControllers, o.plan.Emulation),
		NoRBAC:     !rbac,
		RootCA:     root,
		CACertFile: certs.SignerFile, CAKeyFile: filepath.Join(o.CertDir, pki.CAKeyName),
		TokenKeyFile: o.ControlPlane.ServiceAccountSigningKeyFile,
		// Kubernetes wants this flag to be the same for kube-apiserver and kube-controller-manager.
		// This server has the controllers of both.
		NoGarbageCollector: !o.ControlPlane.Etcd.EnableGarbageCollection,
	}
	if err := config.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	if err := last.AddPostStartHook("concord-kubernetes-controllers", func(genericapiserver.PostStartHookContext) error {
		go func() {
			defer close(ended)
			workers.Loop(ctx, "kubernetes-controllers", func(ctx context.Context) {
				controllers.Campaign(ctx, config, c.controlPlane.Generic.APIServerID, o.Join.ControllerLeaseDuration)
			})
		}()
		return nil
	}); err != nil {
		cancel()
		return err
	}
	return last.AddPreShutdownHook("concord-kubernetes-controllers", func() error {
		cancel()
		select {
		case <-ended:
		case <-time.After(endTimeout):
			return fmt.Errorf("Kubernetes' controllers still run after %v", endTimeout)
		}
		return nil
	})
}

// library returns kube-apiserver's own options, completed.
func (o *Options) library(ctx context.Context, certs *pki.Certificates) (controlplaneoptions.CompletedOptions, error) {
	if err := o.completeSecurity(certs); err != nil {
		return controlplaneoptions.CompletedOptions{}, err
	}
	if run := o.ControlPlane.GenericServerRunOptions; run.AdvertiseAddress == nil && o.serving().BindAddress.IsLoopback() {
		run.AdvertiseAddress = o.serving().BindAddress
	}
	completed, err := o.ControlPlane.Complete(ctx, nil, nil)
	if err != nil {
		return completed, err
	}
	return completed, utilerrors.NewAggregate(completed.Validate())
}

// embedEtcd starts an etcd of the server's own where no other is named.
func (o *Options) embedEtcd(ctx context.Context) (stop func() error, err error) {
	if len(o.etcd().StorageConfig.Transport.ServerList) > 0 {
		return func() error { return nil }, nil
	}
	etcd, err := embedded.StartEtcd(ctx, o.DataDir)
	if err != nil {
		return nil, err
	}
	o.etcd().StorageConfig.Transport.ServerList = []string{etcd.Endpoint}
	return etcd.Close, nil
}

// unlessStopped returns the error of a part of the start, or nil if the start was cut off
// by a stop, which is no failure.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	klog.FromContext(ctx).V(1).Info("Stopped before it served", "err", err)
	return nil
}

// openPort listens on the configured address; port 0 takes a free one.
func openPort(o *genericoptions.SecureServingOptions) (net.Listener, int, error) {
	address := net.JoinHostPort(o.BindAddress.String(), strconv.Itoa(o.BindPort))
	listener, port, err := genericoptions.CreateListener(o.BindNetwork, address, net.ListenConfig{})
	if err != nil {
		return nil, 0, fmt.Errorf("%s cannot be used: choose another --secure-port or --bind-address: %w", address, err)
	}
	return listener, port, nil
}
