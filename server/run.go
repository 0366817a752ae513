package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/grpclog"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/server/gates"
	"github.com/concord-dev/concord/stored"
)

const (
	informerResync  = 10 * time.Minute
	etcdDialTimeout = 30 * time.Second

	// closeTimeout bounds how long a stopping server waits for connections to close.
	closeTimeout = 10 * time.Second
	closePoll    = 200 * time.Millisecond
)

func init() {
	// gRPC tells of every attempt to connect; what comes of them reaches callers as errors.
	// It wants to be told before it is used.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
}

// Server is one running API server.
type Server struct {
	address    string
	kubeconfig string
}

// Address is the host and port it serves on.
func (s *Server) Address() string { return s.address }

// Kubeconfig is the administrator's kubeconfig for it.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Run starts the server that completed options describe and serves until ctx ends; then
// it drains, leaves the cluster and returns. serving is called once the port answers.
func Run(ctx context.Context, o *Options, serving func(*Server)) error {
	ctrllog.SetLogger(klog.Background())
	plan, err := o.Plan()
	if err != nil {
		return err
	}
	o.plan = plan
	gates.AddMetrics(o.ServerRun.ComponentGlobalsRegistry)
	// The port first: a taken one is found before anything is made.
	if o.SecureServing.Listener, o.SecureServing.BindPort, err = openPort(o); err != nil {
		return err
	}
	defer func() { _ = o.SecureServing.Listener.Close() }() // the generic server closes it too
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
	client, err := dialEtcd(ctx, o)
	if err != nil {
		return errors.Join(unlessStopped(ctx, err), stop())
	}
	etcd := newEtcdConn(client, o.Etcd.StorageConfig.ReadycheckTimeout)
	if err = o.checkStorage(ctx, client, ring.Keys()); err != nil {
		err = unlessStopped(ctx, err)
	} else {
		err = serve(ctx, o, etcd, ring, serving)
	}
	return errors.Join(err, etcd.close(), stop())
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

// etcdConn is the connection to etcd that everything in the process shares.
type etcdConn struct {
	client *clientv3.Client
	health *etcdHealth
	// close ends it and all that waits for etcd. It may be called again.
	close func() error
}

func newEtcdConn(client *clientv3.Client, limit time.Duration) *etcdConn {
	health := newEtcdHealth(client, limit)
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	asking.Go(func() { health.run(ctx) })
	return &etcdConn{client: client, health: health, close: sync.OnceValue(func() error {
		stop()
		asking.Wait()
		return client.Close()
	})}
}

// keyring is what the options say of encryption at rest.
func (o *Options) keyring() keyring.Config {
	return keyring.Config{
		Path:   o.Etcd.EncryptionProviderConfigFilepath,
		Reload: o.Etcd.EncryptionProviderConfigAutomaticReload,
		Server: fmt.Sprintf("%s:%d", o.SecureServing.BindAddress, o.SecureServing.BindPort),
	}
}

// Lifecycles returns those of every resource that this binary can serve.
func Lifecycles() []compat.Lifecycle {
	lifecycles := builtin.Lifecycles()
	for _, gvr := range extraResources() {
		lifecycles = append(lifecycles, compat.Lifecycle{GroupVersionResource: gvr, Kind: extraKinds[gvr.Resource]})
	}
	return lifecycles
}

// Plan computes which APIs a server with these completed options serves, and how it
// stores every resource, without starting anything (KEP-4330).
func (o *Options) Plan() (*compat.Plan, error) {
	if o.DisablePlan {
		return unplanned(o.versions), nil
	}
	plan, err := compat.NewPlan(Lifecycles(), compat.Options{
		Binary: o.versions.binary, Emulation: o.versions.emulation, MinCompatibility: o.versions.minCompatibility,
		RuntimeConfig:                  o.RuntimeConfig,
		ForwardCompatible:              o.ServerRun.EmulationForwardCompatible,
		RuntimeConfigForwardCompatible: o.ServerRun.RuntimeConfigEmulationForwardCompatible,
	})
	if err != nil {
		return nil, err
	}
	for _, gvr := range append(extraResources(), protocolResources...) {
		if !plan.Served(gvr) {
			return nil, fmt.Errorf("--runtime-config: %s cannot be switched off, the server itself needs it", gvr.GroupVersion())
		}
	}
	if !o.gates.Enabled(gates.StorageVersionAPI) {
		withhold(plan, storageversion.Resource, fmt.Sprintf("off, as the feature gate %s is", gates.StorageVersionAPI))
	}
	return plan, nil
}

// withhold has no version of a resource served.
func withhold(plan *compat.Plan, gr schema.GroupResource, reason string) {
	for _, r := range plan.Resources {
		if r.Group == gr.Group && r.Resource == gr.Resource {
			for i := range r.Served {
				r.Served[i].Served, r.Served[i].Reason = false, reason
			}
		}
	}
}

// unplanned is what a server does that decides nothing. Lifecycles are newest first.
func unplanned(v versions) *compat.Plan {
	plan := &compat.Plan{Binary: v.binary, Emulation: v.emulation, MinCompatibility: v.minCompatibility}
	at := map[schema.GroupResource]int{}
	for _, l := range Lifecycles() {
		if l.Gone {
			continue
		}
		i, ok := at[l.GroupResource()]
		if !ok {
			i = len(plan.Resources)
			at[l.GroupResource()] = i
			plan.Resources = append(plan.Resources, compat.ResourcePlan{Group: l.Group, Resource: l.Resource, Kind: l.Kind})
			if !l.NotPersisted {
				plan.Resources[i].Storage = l.GroupVersion()
			}
		}
		r := &plan.Resources[i]
		stable := !strings.Contains(l.Version, "alpha") && !strings.Contains(l.Version, "beta")
		r.Served = append(r.Served, compat.VersionPlan{Version: l.Version, Served: stable || slices.Contains(protocolResources, l.GroupVersionResource)})
		r.Decodable = append(r.Decodable, l.GroupVersion().String())
	}
	return plan
}

// checkStorage refuses to start on what the server could not decode.
func (o *Options) checkStorage(ctx context.Context, etcd *clientv3.Client, k *keyring.Keys) error {
	if o.DisableProtocol {
		return nil
	}
	start := stored.Start{Layout: stored.Layout{Prefix: o.Etcd.StorageConfig.Prefix}, Target: o.plan.Target(), Keys: k, Allow: o.AllowUndecodableStorage}
	return start.Check(ctx, rewrite.NewEtcd(etcd))
}

// embedEtcd starts an etcd of the server's own where no other is named.
func (o *Options) embedEtcd(ctx context.Context) (stop func() error, err error) {
	if len(o.Etcd.StorageConfig.Transport.ServerList) > 0 {
		return func() error { return nil }, nil
	}
	etcd, err := StartEtcd(ctx, o.DataDir)
	if err != nil {
		return nil, err
	}
	o.Etcd.StorageConfig.Transport.ServerList = []string{etcd.Endpoint}
	return etcd.Close, nil
}

func dialEtcd(ctx context.Context, o *Options) (*clientv3.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdDialTimeout)
	defer cancel()
	etcd, err := fence.Dial(ctx, o.Etcd.StorageConfig.Transport)
	switch {
	case errors.Is(err, fence.ErrServerCertificate):
		return nil, fmt.Errorf("%w: --etcd-cafile must name the CA that signed it, and --etcd-servers hosts that it is for", err)
	case errors.Is(err, fence.ErrClientCertificate):
		return nil, fmt.Errorf("%w: --etcd-certfile and --etcd-keyfile must name a certificate of the CA that etcd trusts", err)
	case err != nil:
		return nil, fmt.Errorf("%w: check --etcd-servers, and that etcd runs there", err)
	}
	return etcd, nil
}

// serve assembles the server on a connected etcd and runs it.
func serve(ctx context.Context, o *Options, etcd *etcdConn, ring *keyring.Ring, serving func(*Server)) error {
	base, certs, err := baseConfig(o)
	if err != nil {
		return err
	}
	clients, err := newClients(base.LoopbackClientConfig, o.versions.emulation)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(clients.kube, informerResync)
	if err := withAdmission(base, clients.kube, shared, o.gates); err != nil {
		return err
	}
	ring.Apply(base)
	p, err := newProtocol(o, base, etcd, ring, clients)
	if err != nil {
		return err
	}
	defer p.close()
	addEtcdChecks(base, etcd.health, o.Etcd.StorageConfig)
	chain, err := newChain(o, base, certs, shared, p.storage, p.storesCustom, &p.migrated)
	if err != nil {
		return err
	}
	if err := addHooks(o, chain, clients, trust{certs.caFile, o.Aggregation.trust(certs.frontProxy)}, shared, p); err != nil {
		return err
	}
	p.serveCensus(chain.aggregator.GenericAPIServer)
	if serving != nil {
		_, port, err := base.SecureServing.HostPort()
		if err != nil {
			return err
		}
		chain.aggregator.GenericAPIServer.AddPostStartHookOrDie("concord-serving", func(genericapiserver.PostStartHookContext) error {
			serving(&Server{address: net.JoinHostPort(o.SecureServing.BindAddress.String(), fmt.Sprint(port)), kubeconfig: certs.adminKubeconfig})
			return nil
		})
	}
	// Requests are waited for elsewhere.
	chain.aggregator.GenericAPIServer.ShutdownTimeout = closeTimeout
	prepared, err := chain.aggregator.PrepareRun()
	if err != nil {
		return err
	}
	p.openAPI.takeOver()
	p.inProcess.serve(chain.aggregator.GenericAPIServer.Handler)
	loopback, err := rest.TransportFor(base.LoopbackClientConfig)
	if err != nil {
		return err
	}
	finished := make(chan error, 1)
	go func() { finished <- prepared.Run(ctx) }()
	// net/http does not tell HTTP/2 connections that were made in the moment of a stop to
	// close, and waits for them. The server's own are closed from the other end.
	go wait.Until(func() {
		if ctx.Err() != nil {
			utilnet.CloseIdleConnectionsFor(loopback)
		}
	}, closePoll, p.closed)
	select {
	case err := <-finished:
		return err
	case <-p.abandoned:
		return nil
	}
}

// addHooks starts the server's own controllers with it.
func addHooks(o *Options, c *chain, clients *clients, known trust, shared informers.SharedInformerFactory, p *protocol) error {
	server := c.aggregator.GenericAPIServer
	register, err := newAPIServices(c, servedVersions(o.plan))
	if err != nil {
		return err
	}
	crds := c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	hooks := map[string]genericapiserver.PostStartHookFunc{
		"concord-register-apiservices": func(hook genericapiserver.PostStartHookContext) error {
			go register.Run(hook, crds.Informer().HasSynced)
			return nil
		},
		"concord-bootstrap": func(hook genericapiserver.PostStartHookContext) error {
			go func() {
				if err := bootstrap(hook, clients.objects, known, o.ownCRDs()); err != nil && hook.Err() == nil {
					utilruntime.HandleErrorWithContext(hook, err, "The cluster's own objects could not be made")
				}
			}()
			return nil
		},
	}
	if p.keyring != nil {
		hooks["concord-encryption"] = func(hook genericapiserver.PostStartHookContext) error {
			go p.keyring.Run(hook, o.EncryptionReloadInterval)
			return nil
		}
	}
	for name, hook := range hooks {
		if err := server.AddPostStartHook(name, hook); err != nil {
			return err
		}
	}
	p.openAPI = customOpenAPI{extensions: c.extensions, reported: p.reported}
	if err := server.AddPostStartHook("concord-custom-openapi", p.openAPI.start); err != nil {
		return err
	}
	p.namespaces = newNamespaces(clients.controllers, shared.Core().V1().Namespaces(), rewrite.NewEtcd(p.etcd.client), o.Etcd.StorageConfig.Prefix)
	return p.addHooks(server, crds)
}

// servedVersions are the group/versions that this server serves itself, most preferred
// first within a group.
func servedVersions(plan *compat.Plan) []schema.GroupVersion {
	served := sets.New[schema.GroupVersion]()
	for _, r := range plan.Resources {
		for _, v := range r.Served {
			if v.Served {
				served.Insert(schema.GroupVersion{Group: r.Group, Version: v.Version})
			}
		}
	}
	for _, gvr := range extraResources() {
		served.Insert(gvr.GroupVersion())
	}
	list := served.UnsortedList()
	slices.SortFunc(list, func(a, b schema.GroupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
	})
	return list
}
