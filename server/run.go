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
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/grpclog"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/server/gates"
	"github.com/concord-dev/concord/stored"
)

const (
	informerResync  = 10 * time.Minute
	etcdDialTimeout = 30 * time.Second

	// closeTimeout bounds how long a stopping server waits for connections to close. Requests
	// have been answered by then: what is left are connections that never asked anything, for
	// which net/http would wait 5 s, and those that it does not tell to close.
	closeTimeout = 2 * time.Second
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
	etcd, err := join.Dial(ctx, o.Etcd.StorageConfig)
	if err != nil {
		return errors.Join(unlessStopped(ctx, err), stop())
	}
	if err = o.checkStorage(ctx, etcd.Client(), ring.Keys()); err != nil {
		err = unlessStopped(ctx, err)
	} else {
		err = serve(ctx, o, etcd, ring, serving)
	}
	return errors.Join(err, etcd.Close(), stop())
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

// serve assembles the server on a connected etcd and runs it.
func serve(ctx context.Context, o *Options, etcd *join.Etcd, ring *keyring.Ring, serving func(*Server)) error {
	base, certs, err := baseConfig(o)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(base.LoopbackClientConfig)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(kube, informerResync)
	if err := withAdmission(base, kube, shared); err != nil {
		return err
	}
	var j *join.Join
	if !o.DisableProtocol {
		if j, err = join.NewOn(etcd, o.join(base.LoopbackClientConfig, ring)); err != nil {
			return err
		}
		defer func() { _ = j.Close() }() // the etcd's own end is looked at
	}
	base.ResourceTransformers = transformers(ring)
	etcd.AddChecks(base, o.Etcd.StorageConfig.HealthcheckTimeout)
	chain, err := newChain(o, base, certs, shared, j)
	if err != nil {
		return err
	}
	return runChain(ctx, o, base, certs, shared, chain, etcd, j, serving)
}

// transformers are what a nil keyring is not.
func transformers(ring *keyring.Ring) value.ResourceTransformers {
	if ring == nil {
		return nil
	}
	return ring
}

// join is what the options say of the server's part in the protocol.
func (o *Options) join(loopback *rest.Config, ring *keyring.Ring) join.Config {
	kinds := map[schema.GroupResource]string{}
	for _, r := range o.plan.Resources {
		kinds[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = r.Kind
	}
	return join.Config{
		Loopback: loopback, Address: fmt.Sprintf("%s:%d", o.SecureServing.BindAddress, o.SecureServing.BindPort),
		Etcd: o.Etcd.StorageConfig, EnableWatchCache: o.Etcd.EnableWatchCache, WatchCacheSizes: o.Etcd.WatchCacheSizes,
		Uncached: sets.New(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}),
		Schemes:  []*runtime.Scheme{builtin.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		Keyring:  ring, KeyringInterval: o.EncryptionReloadInterval,
		Binary: o.versions.binary, Emulation: o.versions.emulation, MinCompatibility: o.versions.minCompatibility,
		Kinds: kinds, Silent: o.silent(),
		IdentityLeaseDuration: o.IdentityLeaseDuration, IdentityLeaseRenewInterval: o.IdentityLeaseRenewInterval,
		NoControllers: !o.Controllers, ControllerLeaseDuration: o.ControllerLeaseDuration,
		MigrationMaxAddedLatency: o.MigrationMaxAddedLatency, MigrationMaxObjectsPerSecond: o.MigrationMaxObjectsPerSecond,
	}
}

// silent says whether this server reports nothing.
func (o *Options) silent() bool { return !o.gates.Enabled(gates.StorageVersionAPI) }

func runChain(ctx context.Context, o *Options, base *genericapiserver.Config, certs *certificates, shared informers.SharedInformerFactory, chain *chain, etcd *join.Etcd, j *join.Join, serving func(*Server)) error {
	server := chain.aggregator.GenericAPIServer
	openAPI := &customOpenAPI{extensions: chain.extensions, reported: func() bool { return j == nil || j.Reported() }}
	if err := addHooks(o, base, chain, trust{certs.caFile, o.Aggregation.trust(certs.frontProxy)}, shared, etcd, openAPI); err != nil {
		return err
	}
	abandoned := make(<-chan struct{})
	if j != nil {
		if err := j.Start(server); err != nil {
			return err
		}
		abandoned = j.Abandoned()
	}
	if serving != nil {
		_, port, err := base.SecureServing.HostPort()
		if err != nil {
			return err
		}
		server.AddPostStartHookOrDie("concord-serving", func(genericapiserver.PostStartHookContext) error {
			serving(&Server{address: net.JoinHostPort(o.SecureServing.BindAddress.String(), fmt.Sprint(port)), kubeconfig: certs.adminKubeconfig})
			return nil
		})
	}
	// Requests are waited for elsewhere.
	server.ShutdownTimeout = closeTimeout
	prepared, err := chain.aggregator.PrepareRun()
	if err != nil {
		return err
	}
	openAPI.takeOver()
	loopback, err := rest.TransportFor(base.LoopbackClientConfig)
	if err != nil {
		return err
	}
	finished, closed := make(chan error, 1), make(chan struct{})
	defer close(closed)
	go func() { finished <- prepared.Run(ctx) }()
	// net/http does not tell HTTP/2 connections that were made in the moment of a stop to
	// close, and waits for them. The server's own are closed from the other end.
	go wait.Until(func() {
		if ctx.Err() != nil {
			utilnet.CloseIdleConnectionsFor(loopback)
		}
	}, closePoll, closed)
	select {
	case err := <-finished:
		return err
	case <-abandoned:
		return nil
	}
}

// addHooks starts the server's own controllers with it.
func addHooks(o *Options, base *genericapiserver.Config, c *chain, known trust, shared informers.SharedInformerFactory, etcd *join.Etcd, openAPI *customOpenAPI) error {
	objects, err := join.NewClient(base.LoopbackClientConfig)
	if err != nil {
		return err
	}
	register, err := newAPIServices(c, servedVersions(o.plan))
	if err != nil {
		return err
	}
	controllers := join.AsComponent(base.LoopbackClientConfig, compat.ConcordControllers, o.versions.emulation)
	namespaces, err := newNamespaces(controllers, shared.Core().V1().Namespaces(), rewrite.NewEtcd(etcd.Client()), o.Etcd.StorageConfig.Prefix)
	if err != nil {
		return err
	}
	crds := c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
	for name, hook := range map[string]genericapiserver.PostStartHookFunc{
		"concord-register-apiservices": func(hook genericapiserver.PostStartHookContext) error {
			go register.Run(hook, crds.Informer().HasSynced)
			return nil
		},
		"concord-namespaces": func(hook genericapiserver.PostStartHookContext) error {
			if o.Controllers && !o.DisableProtocol {
				go namespaces.Run(hook)
			}
			return nil
		},
		"concord-cluster": func(hook genericapiserver.PostStartHookContext) error {
			go func() {
				if err := bootstrap(hook, objects, known); err != nil && hook.Err() == nil {
					utilruntime.HandleErrorWithContext(hook, err, "The cluster's own objects could not be made")
				}
			}()
			return nil
		},
		"concord-custom-openapi": openAPI.start,
	} {
		if err := c.aggregator.GenericAPIServer.AddPostStartHook(name, hook); err != nil {
			return err
		}
	}
	return nil
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
