package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/stored"
)

const (
	// storageVersionHook is the proposal's name of the check that passes when all
	// built-in resources are reported.
	storageVersionHook = "built-in-resources-storage-version-updater"
	// drainTimeout bounds how long a stopping server waits for the writes it has begun.
	drainTimeout  = 30 * time.Second
	departTimeout = 15 * time.Second
	// awayTimeout bounds both while etcd is away: nothing can land then.
	awayTimeout = 2 * time.Second
)

// protocol is a server's part in section 3 of the design: member, fence, rewriting and,
// on the elected server, the controllers.
type protocol struct {
	options *Options
	raw     rest.Interface
	member  *member.Member
	fence   *fence.Fence
	etcd    *etcdConn
	// keyring is nil where nothing is encrypted.
	keyring *keyring.Ring
	// clientLoad tells migrations whether they have to give way.
	clientLoad clientLoad
	collect    *collect.Collector
	trigger    *trigger.Controller
	skew       *skew.Controller
	migrate    *migrate.Controller
	// speed is how fast this server's rewrites wrote.
	speed speed
	// namespaces is not part of the protocol but runs where its controllers do.
	namespaces *namespaces
	crds       cache.SharedIndexInformer
	// schemas is what sameSchema has compared, by resource.
	schemas sync.Map
	drain   *drain
	kube    kubernetes.Interface
	// election is nil without the protocol.
	election *election
	// mirror is nil where storagemigration.k8s.io is not served.
	mirror *election
	// identity is this process's in elections: where it serves, and what makes it unique.
	identity string
	custom   *customResources
	openAPI  customOpenAPI
	// inProcess carries the requests of migrations through the API.
	inProcess inProcess
	// migrated are the objects that they write at the moment.
	migrated underWay
	// started are closed when the libraries' parts have begun; see running.letStart.
	started map[string]<-chan struct{}
	// abandoned is closed when the server ends without the generic server's consent.
	abandoned chan struct{}
	// closed is closed by close.
	closed chan struct{}
	// crdsSeen says that crds' events have reached the member.
	crdsSeen atomic.Pointer[cache.InformerSynced]
}

// newProtocol makes the server's member and fence. Nothing runs yet.
func newProtocol(o *Options, base *genericapiserver.Config, etcd *etcdConn, ring *keyring.Ring, clients *clients) (*protocol, error) {
	p := &protocol{
		options: o, kube: clients.kube, raw: clients.kube.Discovery().RESTClient(),
		etcd: etcd, keyring: ring, drain: newDrain(), abandoned: make(chan struct{}), closed: make(chan struct{}), identity: fmt.Sprintf("%s:%d_%s", o.SecureServing.BindAddress, o.SecureServing.BindPort, rand.String(8)),
		clientLoad: clientLoad{clock: clock.RealClock{}}, inProcess: inProcess{mark: fence.Rewriting},
	}
	if o.DisableProtocol {
		return p, nil
	}
	p.election = &election{client: clients.controllers.kube, lock: controllersLock, identity: p.identity, duration: o.ControllerLeaseDuration, lead: p.lead}
	var err error
	if p.skew, err = newSkew(clients.controllers.objects, p.identity); err != nil {
		return nil, err
	}
	if ring != nil {
		ring.SetCheck(func(ctx context.Context, next, present *keyring.Keys) error {
			reader, known, layout := rewrite.NewEtcd(etcd.client), o.plan.Target().Resources(), stored.Layout{Prefix: o.Etcd.StorageConfig.Prefix}
			if err := next.CheckOthers(ctx, reader, layout, known, p.member.ID(), 0); err != nil {
				return err
			}
			return next.CheckReload(ctx, reader, layout, known, present)
		})
	}
	persisted := builtin.PersistedResources(o.plan)
	parts := []func() error{
		func() error { return p.newMember(persisted, clients) }, p.newFence, func() error { return p.newMigration(base, clients) },
	}
	if o.silent() {
		p.election.lock = silentLock
		parts = []func() error{func() error { return p.newSilentMember(clients) }}
	}
	for _, part := range parts {
		if err := part(); err != nil {
			return nil, err
		}
	}
	window := compat.Window{Emulation: o.versions.emulation, MinCompatibility: o.versions.minCompatibility}
	gate := newGate(p.member, persisted, base.Serializer)
	base.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(withSkew(p.drain.wrap(gate.wrap(p.clientLoad.wrap(handler)), c.Serializer), window), c)
	}
	return p, nil
}

// memberConfig is what a member has that reports and one that does not.
func (p *protocol) memberConfig(clients *clients) member.Config {
	v := p.options.versions
	return member.Config{
		Client: clients.objects,
		Versions: member.Versions{
			Binary: v.binary.String(), Emulation: v.emulation.String(), MinCompatibility: v.minCompatibility.String(),
		},
		LeaseDuration: p.options.IdentityLeaseDuration,
		RenewInterval: p.options.IdentityLeaseRenewInterval,
		Storage:       p.etcd.health.err,
		Logger:        klog.Background().WithName("member"),
	}
}

// newMember makes the member that reports, and the collector that buries.
func (p *protocol) newMember(persisted []builtin.Persisted, clients *clients) error {
	var err error
	p.collect, err = collect.New(collect.Config{Client: clients.controllers.objects, Logger: klog.Background().WithName("collect")})
	if err != nil {
		return err
	}
	config := p.memberConfig(clients)
	config.Bury = p.collect.Bury
	config.CustomResourcesKnown = func() bool {
		seen := p.crdsSeen.Load()
		return seen != nil && (*seen)()
	}
	config.Rebuild = p.rebuild
	config.Metrics = member.NewMetrics()
	for _, m := range config.Metrics.Registerables() {
		if err := legacyregistry.Register(m); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	if p.member, err = member.New(config); err != nil {
		return err
	}
	p.keyring.Listen(p.member.SetEncryption)
	return p.member.SetBuiltins(reports(persisted))
}

func (p *protocol) newFence() error {
	var err error
	p.fence, err = fence.New(fence.Config{
		Client:  p.etcd.client,
		Permits: p.member,
		// Events as upstream. The protocol reads the other two consistently and often: from
		// etcd that takes a millisecond, while a watch cache first has to learn that it is
		// up to date, which it asks every 100 ms.
		Uncached: sets.New(
			schema.GroupResource{Resource: "events"},
			schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
			storageversion.Resource,
		),
		Renames:            p.renames,
		SameSchema:         p.sameSchema,
		CompactionInterval: p.options.Etcd.StorageConfig.CompactionInterval,
	})
	return err
}

// reports lists what this server reports of the built-in resources.
func reports(persisted []builtin.Persisted) []member.Resource {
	var resources []member.Resource
	for _, p := range persisted {
		resources = append(resources, member.Resource{
			GroupResource: p.GroupResource,
			Encoding:      agree.Encoding(p.Storage.String()),
			Decodable:     p.Decodable,
			Served:        p.Served,
		})
	}
	for _, gvr := range extraResources() {
		gv := gvr.GroupVersion().String()
		resources = append(resources, member.Resource{GroupResource: gvr.GroupResource(), Encoding: agree.Encoding(gv), Decodable: []string{gv}, Served: []string{gv}})
	}
	return resources
}

// storage gives everything that getter configures a fenced store.
func (p *protocol) storage(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if p.fence == nil {
		return getter
	}
	f := fenced{RESTOptionsGetter: getter, cached: p.fence.Decorator(p.options.Etcd.EnableWatchCache), uncached: p.fence.Decorator(false)}
	// Complete has refused what cannot be parsed.
	f.sizes, _ = options.ParseWatchCacheSizes(p.options.Etcd.WatchCacheSizes)
	return f
}

// storesCustom takes down how custom resources are stored, and how their webhooks are found.
func (p *protocol) storesCustom(getter generic.RESTOptionsGetter, services webhook.ServiceResolver) {
	if p.custom != nil {
		p.custom.storage, p.custom.services = getter, services
	}
}

type fenced struct {
	generic.RESTOptionsGetter
	cached, uncached generic.StorageDecorator
	sizes            map[schema.GroupResource]int
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (f fenced) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := f.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.Decorator = f.cached
	if size, ok := f.sizes[resource]; ok && size <= 0 {
		options.Decorator = f.uncached
	}
	return options, err
}

// rebuild makes the custom resource's new handler exist, by lists that the handler's
// builder answers (DESIGN 3.3). The old handler may answer the first of them: it is
// listed until the newest store writes what the definition says.
func (p *protocol) rebuild(ctx context.Context, crd string, gr schema.GroupResource, served string) {
	gv, err := schema.ParseGroupVersion(served)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A custom resource's version cannot be listed", "crd", crd)
		return
	}
	last := errors.New("not listed yet")
	err = wait.ExponentialBackoffWithContext(ctx, rebuildBackoff, func(ctx context.Context) (bool, error) {
		last = p.raw.Get().AbsPath("/apis", gv.Group, gv.Version, gr.Resource).Param("limit", "1").Do(ctx).Error()
		return last == nil && p.isBuilt(gr), nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(1).Info("A custom resource's handler is built with its next request instead", "crd", crd, "err", errors.Join(err, last))
	}
}

// rebuildBackoff lists for about five seconds at most.
var rebuildBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Second}

// renames says whether a custom resource is converted by name only.
func (p *protocol) renames(gr schema.GroupResource) bool {
	crd := p.crd(gr)
	return crd != nil && crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.NoneConverter
}

// crd is a custom resource's definition, as this server knows it; nil if it knows none.
func (p *protocol) crd(gr schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
	if p.crds == nil {
		return nil
	}
	obj, exists, err := p.crds.GetIndexer().GetByKey(gr.String())
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if err != nil || !exists || !ok {
		return nil
	}
	return crd
}

// compared is what was found of a definition.
type compared struct {
	crd  *apiextensionsv1.CustomResourceDefinition
	same bool
}

// sameSchema says whether all versions of a custom resource have the same schema. It is asked
// for every object that is migrated.
func (p *protocol) sameSchema(gr schema.GroupResource) bool {
	crd := p.crd(gr)
	if crd == nil {
		return false
	}
	if known, ok := p.schemas.Load(gr); ok && known.(compared).crd == crd {
		return known.(compared).same
	}
	same := oneSchema(crd)
	p.schemas.Store(gr, compared{crd, same})
	return same
}

func oneSchema(crd *apiextensionsv1.CustomResourceDefinition) bool {
	versions := crd.Spec.Versions
	return !slices.ContainsFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return !equality.Semantic.DeepEqual(v.Schema, versions[0].Schema)
	})
}

// isBuilt says whether the newest store of the resource writes what its definition says,
// or there is no definition any more.
func (p *protocol) isBuilt(gr schema.GroupResource) bool {
	crd := p.crd(gr)
	if crd == nil {
		return true
	}
	store, built := p.fence.Newest(gr)
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			return built && store.Encoding == agree.Encoding(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String())
		}
	}
	return true
}

// addHooks runs the protocol with the server.
func (p *protocol) addHooks(server *genericapiserver.GenericAPIServer, crds crdinformers.CustomResourceDefinitionInformer) error {
	if p.member == nil {
		return nil
	}
	p.crds = crds.Informer()
	p.started = server.MuxAndDiscoveryCompleteSignals()
	running := newRunning(p)
	if p.options.silent() {
		return addSilentHooks(server, running)
	}
	registration, err := p.crds.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.observe(obj) },
		UpdateFunc: func(_, obj any) { p.observe(obj) },
		DeleteFunc: func(obj any) {
			if crd, ok := listwatch.Deleted[*apiextensionsv1.CustomResourceDefinition](obj); ok {
				p.member.ForgetCRD(crd)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	seen := cache.InformerSynced(registration.HasSynced)
	p.crdsSeen.Store(&seen)
	if err := server.AddPostStartHook(storageVersionHook, running.start); err != nil {
		return err
	}
	if err := server.AddPreShutdownHook("concord-depart", running.depart); err != nil {
		return err
	}
	return server.AddReadyzChecks(healthz.NamedCheck("storage-versions", func(*http.Request) error { return p.member.Ready() }))
}

// awaitCRDs returns when the server's own CRDs are established, or ctx ends.
func (p *protocol) awaitCRDs(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) {
		for _, want := range p.options.ownCRDs() {
			obj, exists, err := p.crds.GetIndexer().GetByKey(want.Name)
			if err != nil {
				return false, err
			}
			if !exists {
				return false, nil
			}
			crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
			if !ok || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
				return false, nil
			}
		}
		return true, nil
	})
}

func (p *protocol) observe(obj any) {
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		p.member.ObserveCRD(crd)
	}
}

// reported says whether this server has reported all it has to.
func (p *protocol) reported() bool { return p.member == nil || p.member.AllReported() }

func (p *protocol) close() {
	close(p.closed)
	if p.fence != nil {
		p.fence.Close()
	}
}
