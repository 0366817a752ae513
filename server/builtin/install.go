package builtin

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/storageversion"
)

// A Plan says which versions are served and in which each resource is stored;
// *compat.Plan is one (KEP-4330).
type Plan interface {
	// Served says whether the server offers the resource in this version.
	Served(schema.GroupVersionResource) bool
	// Storage returns the version that the resource is stored in.
	Storage(schema.GroupResource) (schema.GroupVersion, bool)
}

// Persisted is what a server reports of a resource that it stores (KEP-2339).
type Persisted struct {
	GroupResource schema.GroupResource
	// Storage is the version that objects are encoded in.
	Storage schema.GroupVersion
	// Decodable and Served are group/versions, newest first. Invariant: Decodable
	// contains Storage and all of Served.
	Decodable, Served []string
	// Aliases are resources of other groups that read and write the same objects.
	Aliases []schema.GroupResource
}

// PersistedResources returns the resources of which the plan serves any version, sorted
// by group and resource.
func PersistedResources(plan Plan) []Persisted {
	all := kinds()
	var persisted []Persisted
	for _, k := range all {
		if k.transient || k.shares() {
			continue
		}
		p := Persisted{GroupResource: k.GroupResource, Storage: storageVersion(plan, k)}
		p.add(plan, k)
		for _, alias := range all {
			if alias.storedAs == k.GroupResource && alias.shares() {
				p.Aliases = append(p.Aliases, alias.GroupResource)
				p.add(plan, alias)
			}
		}
		if len(p.Served) > 0 {
			persisted = append(persisted, p)
		}
	}
	slices.SortFunc(persisted, func(a, b Persisted) int {
		return cmp.Or(cmp.Compare(a.GroupResource.Group, b.GroupResource.Group),
			cmp.Compare(a.GroupResource.Resource, b.GroupResource.Resource))
	})
	return persisted
}

func (p *Persisted) add(plan Plan, k kind) {
	for _, t := range k.versions {
		gv := k.groupVersion(t)
		p.Decodable = append(p.Decodable, gv.String())
		if plan.Served(gv.WithResource(k.Resource)) {
			p.Served = append(p.Served, gv.String())
		}
	}
}

// shares says that the kind has no store of its own.
func (k kind) shares() bool { return k.storedAs != schema.GroupResource{} }

// storageVersion is the plan's, or the newest for a resource with no other.
func storageVersion(plan Plan, k kind) schema.GroupVersion {
	if gv, ok := plan.Storage(k.GroupResource); ok && len(k.versions) > 1 {
		return gv
	}
	return k.groupVersion(k.versions[0])
}

// Install builds the storage of every resource that the plan serves and returns the API
// groups to install, sorted by name; the core group has the empty name. Events get a
// store like all others: whoever provides the getter should leave out their watch cache.
func Install(plan Plan, getter generic.RESTOptionsGetter, deps Deps) ([]*genericapiserver.APIGroupInfo, error) {
	deps, err := deps.withDefaults()
	if err != nil {
		return nil, err
	}
	for _, p := range PersistedResources(plan) {
		if !slices.Contains(p.Decodable, p.Storage.String()) {
			return nil, fmt.Errorf("%s is to be stored as %s, which this binary cannot decode (it knows %v)", p.GroupResource, p.Storage, p.Decodable)
		}
	}
	built, err := buildStores(plan, generics{getter: getter, deps: deps, expressions: newExpressions(deps.MinCompatibility)})
	if err != nil {
		return nil, err
	}
	groups := map[string]*genericapiserver.APIGroupInfo{}
	for _, k := range kinds() {
		if k.GroupResource == storageversion.Resource {
			continue // is served by package join
		}
		for _, t := range k.versions {
			if gv := k.groupVersion(t); plan.Served(gv.WithResource(k.Resource)) {
				add(groups, gv, k.Resource, built[k.storeOf()])
			}
		}
	}
	return sorted(groups), nil
}

// storeOf returns the resource whose store holds the kind's objects.
func (k kind) storeOf() schema.GroupResource {
	if k.shares() {
		return k.storedAs
	}
	return k.GroupResource
}

func buildStores(plan Plan, g generics) (map[schema.GroupResource]stores, error) {
	needed := map[schema.GroupResource]bool{}
	for _, k := range kinds() {
		for _, t := range k.versions {
			if plan.Served(k.groupVersion(t).WithResource(k.Resource)) {
				needed[k.storeOf()] = true
			}
		}
	}
	built := map[schema.GroupResource]stores{}
	for _, k := range kinds() {
		if k.shares() || !needed[k.GroupResource] || k.GroupResource == storageversion.Resource {
			continue
		}
		store, err := k.storage(k, g)
		if err != nil {
			return nil, err
		}
		built[k.GroupResource] = store
	}
	return built, nil
}

// add puts a resource and its subresources into its group.
func add(groups map[string]*genericapiserver.APIGroupInfo, gv schema.GroupVersion, resource string, all stores) {
	info, ok := groups[gv.Group]
	if !ok {
		fresh := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, Scheme, ParameterCodec, Codecs)
		fresh.PrioritizedVersions = nil
		info = &fresh
		groups[gv.Group] = info
	}
	if !slices.Contains(info.PrioritizedVersions, gv) {
		info.PrioritizedVersions = append(info.PrioritizedVersions, gv)
		info.VersionedResourcesStorageMap[gv.Version] = map[string]rest.Storage{}
	}
	for subresource, store := range all {
		path := resource
		if subresource != "" {
			path += "/" + subresource
		}
		info.VersionedResourcesStorageMap[gv.Version][path] = store
	}
}

func sorted(groups map[string]*genericapiserver.APIGroupInfo) []*genericapiserver.APIGroupInfo {
	var infos []*genericapiserver.APIGroupInfo
	for _, info := range groups {
		slices.SortFunc(info.PrioritizedVersions, func(a, b schema.GroupVersion) int {
			return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
		})
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b *genericapiserver.APIGroupInfo) int {
		return cmp.Compare(a.PrioritizedVersions[0].Group, b.PrioritizedVersions[0].Group)
	})
	return infos
}
