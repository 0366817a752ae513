package join

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/stored"
)

// reporting is the server's membership: its Lease and reports, and the collector that buries
// others.
type reporting struct {
	member *member.Member
	// collect is nil in a server that reports nothing.
	collect *collect.Collector
	drain   *filters.Drain
	// builtins are the resources that Start has reported.
	builtins []member.Resource
}

func (j *Join) newReporting() error {
	r := &reporting{drain: filters.NewDrain()}
	j.reporting = r
	config := member.Config{
		Client:        j.clients.objects,
		Versions:      j.config.versions(),
		LeaseDuration: j.config.IdentityLeaseDuration,
		RenewInterval: j.config.IdentityLeaseRenewInterval,
		Storage:       j.etcd.health.Unwritable,
		Logger:        klog.Background().WithName("member"),
	}
	var err error
	if j.config.Silent {
		config.Erase = eraseStorageVersions(j.etcd.client, j.config.Etcd.Prefix)
	} else {
		collector, err := j.clients.as(roles.Collector)
		if err != nil {
			return err
		}
		r.collect = collect.New(collect.Config{Client: collector.objects, Logger: klog.Background().WithName("collect")})
		// A server that stops takes no writes any more but its own, so it buries itself as itself.
		config.Bury = collect.New(collect.Config{Client: j.clients.objects, Logger: klog.Background().WithName("collect")}).Bury
		config.CustomResourcesKnown = func() bool { return j.crds.known() }
		config.Rebuild = func(ctx context.Context, crd string, gr schema.GroupResource, served string) {
			j.crds.rebuild(ctx, crd, gr, served)
		}
		if config.Metrics, err = memberMetrics(); err != nil {
			return err
		}
	}
	if r.member, err = member.New(config); err != nil {
		return err
	}
	if j.hosting != nil {
		j.hosting.Follow(r.member, j.clients.objects)
	}
	j.config.Keyring.Listen(r.member.SetEncryption)
	return nil
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

// reports returns the server's reports of its built-in resources: for each the group/version that its store writes,
// the versions that the schemes can read, and the versions that are served.
func (j *Join) reports(server *genericapiserver.GenericAPIServer) ([]member.Resource, error) {
	reports, err := j.reportsOf(servedAt(server.ListedPaths(), servedResources(server), j.storing.switchedOn))
	for _, r := range reports {
		if j.hosting != nil && len(r.Served) == 0 {
			klog.Background().Info("Stored, and not served as a resource of its own: clients, and so migrations, do not reach its objects", "resource", r.GroupResource.String())
		}
	}
	return reports, err
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

// reportsOf is reports, for a caller that knows which versions are served.
func (j *Join) reportsOf(served func(schema.GroupVersionResource) bool) ([]member.Resource, error) {
	var resources []member.Resource
	for _, store := range j.storing.fence.Builtins() {
		if j.hosting != nil && isLocal(store.GroupResource.Group) {
			continue // exempt from the fence, and nobody else's business
		}
		r, err := resourceOf(store, j.storing.config.Schemes, served)
		if err != nil {
			return nil, err
		}
		resources = append(resources, r)
	}
	return resources, nil
}

// allReported returns an error if a store was built after Start: its resource is not reported, so that no write of it
// will be allowed.
func (j *Join) allReported() error {
	if j.storing.fence == nil {
		return nil
	}
	for _, store := range j.storing.fence.Builtins() {
		reported := slices.ContainsFunc(j.reporting.builtins, func(r member.Resource) bool { return r.GroupResource == store.GroupResource })
		if !reported && (j.hosting == nil || !isLocal(store.GroupResource.Group)) {
			return fmt.Errorf("join: %s was installed after Start, so that it is not reported and cannot be written: install all API groups before Start", store.GroupResource)
		}
	}
	return nil
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
