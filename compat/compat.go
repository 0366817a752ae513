// Package compat decides, from lifecycle data and three versions, how an API server of one release behaves when it
// emulates another (KEP-4330): which versions of which resources it serves and why, and in which version it stores
// each resource. Everything here is a function of its arguments.
package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

// Lifecycle says in which releases one version of one resource exists.
//
// Invariant: Introduced < Removed when both are set; no two lifecycles of a plan name the same GroupVersionResource.
type Lifecycle struct {
	schema.GroupVersionResource
	Kind string

	// Introduced is the first release that serves and decodes this version; nil: every release in range does.
	Introduced *version.Version
	// Deprecated is the release that deprecated it; nil: none so far. Only shown, it decides nothing.
	Deprecated *version.Version
	// Removed is the first release that neither serves nor decodes it any more; nil: none so far.
	Removed *version.Version
	// Kept means that releases go on decoding this version after its removal: objects are still stored in it.
	Kept bool

	// Gone means that the binary has lost the types: a release in range knew this version, this binary cannot.
	Gone bool
	// NotPersisted marks a resource that is never stored, such as a review: it has no storage version.
	NotPersisted bool
}

func (l Lifecycle) introducedBy(release *version.Version) bool {
	return l.Introduced == nil || !l.Introduced.GreaterThan(release)
}

func (l Lifecycle) removedBy(release *version.Version) bool {
	return l.Removed != nil && !l.Removed.GreaterThan(release)
}

// decodedBy: a release decodes a version from its introduction until its removal, or for good.
func (l Lifecycle) decodedBy(release *version.Version) bool {
	return l.introducedBy(release) && (l.Kept || !l.removedBy(release))
}

// Options are the choices of a component's operator, made by flags.
type Options struct {
	// Binary is the release of the component itself. Default BinaryVersion().
	Binary *version.Version
	// Emulation is the release whose APIs are served. Default Binary.
	Emulation *version.Version
	// MinCompatibility is the oldest release that must be able to read what is stored. Default DefaultMinCompatibility.
	MinCompatibility *version.Version

	// RuntimeConfig are the values of --runtime-config. A key is "<group>/<version>", "v1" or "/v1" for the core group,
	// either followed by "/<resource>", or one of "api/all", "api/ga", "api/beta", "api/alpha"; a value is "true",
	// "false" or "" for true. The most specific key wins. A key that names a version enables it even if it is newer than
	// Emulation (KEP-4330).
	RuntimeConfig map[string]string
	// BetaOnByDefault are the beta versions that are served without being asked for. Since Kubernetes 1.24 new ones are not.
	BetaOnByDefault sets.Set[schema.GroupVersion]

	// ForwardCompatible serves, with each stable or beta version that is served at Emulation, the newer and more stable
	// versions of the same resource that the binary has, unless RuntimeConfig names one and says no.
	ForwardCompatible bool
}

// withDefaults fills in the versions, cut to major and minor, and checks them.
func (o Options) withDefaults() (Options, error) {
	if o.Binary == nil {
		o.Binary = BinaryVersion()
	}
	if o.Emulation == nil {
		o.Emulation = o.Binary
	}
	if o.MinCompatibility == nil {
		o.MinCompatibility = DefaultMinCompatibility(o.Binary, o.Emulation)
	}
	o.Binary, o.Emulation, o.MinCompatibility = minor(o.Binary), minor(o.Emulation), minor(o.MinCompatibility)
	return o, ValidateVersions(o.Binary, o.Emulation, o.MinCompatibility)
}

// Plan lists for every resource the versions that a server with some Options serves, and the one that it stores.
type Plan struct {
	Binary, Emulation, MinCompatibility *version.Version
	// Resources are sorted by group and resource.
	Resources []ResourcePlan

	lifecycles []Lifecycle
}

// ResourcePlan is the part of a Plan that is about one resource.
type ResourcePlan struct {
	Group, Resource, Kind string
	// Served holds every version the lifecycles know, served or not, newest first by kube-aware order.
	Served []VersionPlan
	// Storage is the version in which objects are written; empty when the resource is not persisted or the binary has no type for it.
	Storage schema.GroupVersion
	// Decodable are the group/versions this binary decodes, whether it serves them or not, newest first.
	Decodable []string
}

// VersionPlan says whether one version of a resource is served and, to an operator, why.
type VersionPlan struct {
	Version string
	Served  bool
	Reason  string
}

// NewPlan computes what a server with these options does with these resources. Lifecycles introduced after o.Binary are ignored,
// so that data of a newer release serves to plan for an older one.
//
// It fails when the versions are out of range, when RuntimeConfig names something unknown or an alpha version under emulation, and
// when no version of a resource can be decoded by all releases from MinCompatibility to the one after Emulation.
// Errors are one line and say what is allowed.
func NewPlan(lifecycles []Lifecycle, o Options) (*Plan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	rows := slices.DeleteFunc(slices.Clone(lifecycles), func(l Lifecycle) bool { return !l.introducedBy(o.Binary) })
	slices.SortFunc(rows, compareLifecycles)
	if err := validate(rows); err != nil {
		return nil, err
	}
	config, err := parseRuntimeConfig(o.RuntimeConfig, rows)
	if err != nil {
		return nil, err
	}
	p := &Plan{Binary: o.Binary, Emulation: o.Emulation, MinCompatibility: o.MinCompatibility, lifecycles: rows}
	resources := byResource(rows)
	storage, err := storageVersions(resources, o)
	if err != nil {
		return nil, err
	}
	for i, rows := range resources {
		served, err := availability(rows, o, config)
		if err != nil {
			return nil, err
		}
		r := ResourcePlan{Group: rows[0].Group, Resource: rows[0].Resource, Kind: rows[0].Kind, Served: served, Storage: storage[i]}
		for _, l := range rows {
			if !l.Gone {
				r.Decodable = append(r.Decodable, l.GroupVersion().String())
			}
		}
		p.Resources = append(p.Resources, r)
	}
	return p, nil
}

// Served reports whether the version of the resource, or of the resource a subresource belongs to, is served.
func (p *Plan) Served(gvr schema.GroupVersionResource) bool {
	r := p.resource(gvr.GroupResource())
	return r != nil && slices.ContainsFunc(r.Served, func(v VersionPlan) bool { return v.Version == gvr.Version && v.Served })
}

// Storage returns the version in which the resource is written, and false if it is unknown or not persisted.
func (p *Plan) Storage(gr schema.GroupResource) (schema.GroupVersion, bool) {
	r := p.resource(gr)
	if r == nil || r.Storage.Empty() {
		return schema.GroupVersion{}, false
	}
	return r.Storage, true
}

func (p *Plan) resource(gr schema.GroupResource) *ResourcePlan {
	name, _, _ := strings.Cut(gr.Resource, "/")
	for i := range p.Resources {
		if r := &p.Resources[i]; r.Group == gr.Group && r.Resource == name {
			return r
		}
	}
	return nil
}

func compareLifecycles(a, b Lifecycle) int {
	return cmp.Or(
		cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Resource, b.Resource),
		kubeversion.CompareKubeAwareVersionStrings(b.Version, a.Version),
	)
}

func validate(sorted []Lifecycle) error {
	for i, l := range sorted {
		switch {
		case l.Resource == "" || maturityOf(l.Version) == unknown:
			return fmt.Errorf("lifecycle of %q, version %q: a resource and a version like v1, v1beta1 or v1alpha1 are needed", l.GroupResource(), l.Version)
		case l.Introduced != nil && l.removedBy(l.Introduced):
			return fmt.Errorf("lifecycle of %s: removed in %s, not after its introduction in %s", name(l), l.Removed, l.Introduced)
		case i > 0 && l.GroupVersionResource == sorted[i-1].GroupVersionResource:
			return fmt.Errorf("lifecycle of %s: given twice", name(l))
		}
	}
	return nil
}

// byResource cuts sorted lifecycles into one slice per resource, each newest version first.
func byResource(sorted []Lifecycle) [][]Lifecycle {
	var out [][]Lifecycle
	for start, i := 0, 1; i <= len(sorted); i++ {
		if i == len(sorted) || sorted[i].GroupResource() != sorted[start].GroupResource() {
			out = append(out, sorted[start:i])
			start = i
		}
	}
	return out
}

// name of a lifecycle as --runtime-config spells it.
func name(l Lifecycle) string { return l.GroupVersion().String() + "/" + l.Resource }
