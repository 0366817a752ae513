package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/etcdhealth"
	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
	"github.com/concord-dev/concord/stored"
)

// reporting is the server's membership: its Lease and reports, and the collector that buries
// others.
type reporting struct {
	member *member.Member
	// host is nil but in an aggregated server.
	host   *hosting.Host
	health *etcdhealth.Health
	// collect is nil in a server that reports nothing.
	collect *collect.Collector
	drain   *filters.Drain
	// builtins are the resources that Start has reported, of these stores; nil in a server that reports nothing.
	builtins []member.Resource
	stores   *storing
}

func newReporting(config Config, etcd *Etcd, clients *clients, host *hosting.Host, crds *definitions) (*reporting, error) {
	r := &reporting{host: host, health: etcd.health, drain: filters.NewDrain()}
	membership := member.Config{
		Client:        clients.objects,
		Versions:      config.versions(),
		LeaseDuration: config.IdentityLeaseDuration,
		RenewInterval: config.IdentityLeaseRenewInterval,
		Storage:       etcd.health.Unwritable,
		Logger:        klog.Background().WithName("member"),
	}
	var err error
	if config.Silent {
		membership.Erase = eraseStorageVersions(etcd.client, config.Etcd.Prefix)
	} else {
		collector, err := clients.as(roles.Collector)
		if err != nil {
			return nil, err
		}
		r.collect = collect.New(collect.Config{Client: collector.objects, Logger: klog.Background().WithName("collect")})
		// A server that stops takes no writes any more but its own, so it buries itself as itself.
		membership.Bury = collect.New(collect.Config{Client: clients.objects, Logger: klog.Background().WithName("collect")}).Bury
		membership.CustomResourcesKnown, membership.Rebuild = crds.known, crds.rebuild
		if membership.Metrics, err = memberMetrics(); err != nil {
			return nil, err
		}
	}
	if r.member, err = member.New(membership); err != nil {
		return nil, err
	}
	if host != nil {
		host.Follow(r.member, clients.objects)
	}
	config.Keyring.Listen(r.member.SetEncryption)
	return r, nil
}

// eraseStorageVersions returns a function that deletes all StorageVersions, with one request to etcd:
// a server that reports nothing does not serve them.
func eraseStorageVersions(etcd *clientv3.Client, prefix string) func(context.Context) error {
	key := stored.ResourcePrefix(prefix, storageversion.Resource, false)
	return func(ctx context.Context) error {
		_, err := etcd.Delete(ctx, key, clientv3.WithPrefix())
		return err
	}
}

// report reports the built-in resources in these stores: for each the group/version that its store writes, the versions
// that the schemes can read, and the versions that the server serves.
func (r *reporting) report(server *genericapiserver.GenericAPIServer, stores *storing) error {
	reports, err := r.reportsOf(stores, servedAt(server.ListedPaths(), servedResources(server), stores.switchedOn))
	if err != nil {
		return err
	}
	for _, report := range reports {
		if r.host != nil && len(report.Served) == 0 {
			klog.Background().Info("Stored, and not served as a resource of its own: clients, and so migrations, do not reach its objects", "resource", report.GroupResource.String())
		}
	}
	if r.host != nil && len(reports) == 0 {
		return errors.New("join: nothing is stored through the RESTOptionsGetter that Join has set: install all API groups before Start, and build their storage with it; a server that stores nothing needs no join")
	}
	if err := r.member.SetBuiltins(reports); err != nil {
		return err
	}
	r.builtins, r.stores = reports, stores
	if r.host != nil {
		r.host.Reports = reports
	}
	return nil
}

// servedResources are the resources that a server and those that it delegates to serve, by the path of their group and
// version. Subresources alone do not make one.
func servedResources(server *genericapiserver.GenericAPIServer) map[string]sets.Set[string] {
	served := map[string]sets.Set[string]{}
	for server != nil {
		for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
			root := service.RootPath()
			for _, route := range service.Routes() {
				path := strings.TrimPrefix(strings.TrimPrefix(route.Path, root), "/namespaces/{namespace}")
				resource, of, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
				if of == "" || of == "{name}" {
					served[root] = served[root].Union(sets.New(resource))
				}
			}
		}
		server, _ = server.NextDelegate().(*genericapiserver.GenericAPIServer)
	}
	return served
}

// servedAt says of a version of a resource whether a server with these paths, and these resources at some of them,
// serves it.
func servedAt(listed []string, at map[string]sets.Set[string], on func(schema.GroupVersionResource) bool) func(schema.GroupVersionResource) bool {
	paths := sets.New(listed...)
	return func(gvr schema.GroupVersionResource) bool {
		if gvr.Group == storageversion.Resource.Group {
			return true // is installed by Start
		}
		path := "/apis/" + gvr.GroupVersion().String()
		if gvr.Group == "" {
			path = "/api/" + gvr.Version
		}
		resources, known := at[path]
		return paths.Has(path) && (!known || resources.Has(gvr.Resource)) && on(gvr)
	}
}

// reportsOf returns the reports of the resources in these stores.
func (r *reporting) reportsOf(stores *storing, served func(schema.GroupVersionResource) bool) ([]member.Resource, error) {
	var resources []member.Resource
	for _, store := range stores.fence.Builtins() {
		if r.host != nil && isLocal(store.GroupResource.Group) {
			continue // exempt from the fence, and nobody else's business
		}
		resource, err := resourceOf(store, stores.config.Schemes, served)
		if err != nil {
			return nil, err
		}
		resources = append(resources, resource)
	}
	return resources, nil
}

// allReported returns an error if a store was built after Start: its resource is not reported, so that no write of it
// will be allowed.
func (r *reporting) allReported() error {
	if r.stores == nil {
		return nil
	}
	for _, store := range r.stores.fence.Builtins() {
		reported := slices.ContainsFunc(r.builtins, func(b member.Resource) bool { return b.GroupResource == store.GroupResource })
		if !reported && (r.host == nil || !isLocal(store.GroupResource.Group)) {
			return fmt.Errorf("join: %s was installed after Start, so that it is not reported and cannot be written: install all API groups before Start", store.GroupResource)
		}
	}
	return nil
}

// ready is Join.Ready.
func (r *reporting) ready() error {
	if err := r.member.Ready(); err != nil || r.host == nil {
		return err
	}
	return r.host.Ready()
}

// awaitReady returns when every built-in resource is reported.
func (r *reporting) awaitReady(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) { return r.ready() == nil, nil })
	if err != nil {
		return errors.Join(err, r.ready())
	}
	return nil
}

// awaitRegistered returns when this server has an identity Lease: before, it may be that
// none has.
func (r *reporting) awaitRegistered(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) { return r.member.ID() != "", nil })
}

// resourceOf reads off a store the report on its resource.
func resourceOf(store fence.Store, schemes []*runtime.Scheme, served func(schema.GroupVersionResource) bool) (member.Resource, error) {
	r := member.Resource{GroupResource: store.GroupResource, Encoding: store.Encoding}
	for _, scheme := range schemes {
		kinds, _, err := scheme.ObjectKinds(store.New())
		if err != nil {
			continue
		}
		// A Go type may be registered in several groups: the kind is that of the group that the store writes.
		of := max(0, slices.IndexFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Group == store.Encoding.Group() }))
		for _, gv := range scheme.VersionsForGroupKind(kinds[of].GroupKind()) {
			if gv.Version == runtime.APIVersionInternal {
				continue
			}
			r.Decodable = append(r.Decodable, gv.String())
			if served(gv.WithResource(store.GroupResource.Resource)) {
				r.Served = append(r.Served, gv.String())
			}
		}
		break
	}
	if !slices.Contains(r.Decodable, string(store.Encoding)) {
		return r, fmt.Errorf("join: no scheme of Config.Schemes knows the kind that %s stores as %s", store.GroupResource, store.Encoding)
	}
	return r, nil
}
