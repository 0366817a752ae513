package planning

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	basecompatibility "k8s.io/component-base/compatibility"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/controlplane"

	"github.com/concord-dev/concord/compat"
)

// Options are the input that a plan is computed from.
type Options struct {
	// Effective are the versions of component kube, completed: the binary's own is not asked for, as it is compat.BinaryVersion().
	// Required.
	Effective basecompatibility.EffectiveVersion
	// Serves are the resources that the control plane can serve. Default Kube().
	Serves sets.Set[schema.GroupResource]
	// RuntimeConfig are the values of --runtime-config. Default none.
	RuntimeConfig map[string]string
	// ForwardCompatible is --emulation-forward-compatible.
	ForwardCompatible bool
	// Needs are versions that have to be served, beyond those that every server needs. Default none.
	Needs []schema.GroupVersionResource
}

// Validate returns an error for missing or unknown options.
func (o Options) Validate() error {
	if o.Effective == nil {
		return fmt.Errorf("a plan needs the effective version of component %s", basecompatibility.DefaultKubeComponent)
	}
	if unknown := o.Serves.Difference(known()); len(unknown) > 0 {
		return fmt.Errorf("no lifecycles of %v: only built-in resources can be planned", unknown.UnsortedList())
	}
	return nil
}

// New plans which versions of the resources a control plane serves and in which each is stored. It fails as compat.NewPlan does: when
// versions are out of range, when RuntimeConfig enables an unknown API or an alpha version under emulation, and when no
// version of a resource can be read by the whole window.
//
// Feature gates are not looked at: a resource whose feature is off is planned, and Kubernetes builds no storage for it.
func New(o Options) (*compat.Plan, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Serves == nil {
		o.Serves = Kube()
	}
	rows := slices.DeleteFunc(Lifecycles(), func(l compat.Lifecycle) bool { return !o.Serves.Has(l.GroupResource()) })
	plan, err := compat.NewPlan(rows, compat.Options{
		Emulation:         o.Effective.EmulationVersion(),
		MinCompatibility:  o.Effective.MinCompatibilityVersion(),
		RuntimeConfig:     withoutIdle(o.RuntimeConfig, rows),
		BetaOnByDefault:   betaOnByDefault(),
		ForwardCompatible: o.ForwardCompatible,
	})
	if err != nil {
		return nil, err
	}
	for _, gvr := range slices.Concat(needed, o.Needs) {
		switch {
		case plan.Served(gvr):
		case slices.ContainsFunc(rows, func(l compat.Lifecycle) bool {
			return l.GroupVersionResource == gvr && l.Introduced != nil && l.Introduced.GreaterThan(o.Effective.EmulationVersion())
		}):
			return nil, fmt.Errorf("a feature that is switched on needs %s/%s, which %s does not have: add --runtime-config=%[1]s=true, or switch the feature off with --feature-gates",
				gvr.GroupVersion(), gvr.Resource, o.Effective.EmulationVersion())
		case strings.Contains(gvr.Version, "beta"):
			return nil, fmt.Errorf("a feature that is switched on needs %s/%s, which is off by default: add --runtime-config=%[1]s=true, or switch the feature off with --feature-gates",
				gvr.GroupVersion(), gvr.Resource)
		default:
			return nil, fmt.Errorf("--runtime-config: %s/%s cannot be switched off, the server itself needs it: remove that setting, or add %[1]s=true beside api/all or api/ga",
				gvr.GroupVersion(), gvr.Resource)
		}
	}
	for i := range plan.Resources {
		r := &plan.Resources[i]
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		if gv, ok := storedAs[gr]; ok {
			r.Storage = gv
		}
	}
	return plan, nil
}

// Kube returns the resources that kube-apiserver can serve.
func Kube() sets.Set[schema.GroupResource] {
	return possible(controlplane.DefaultAPIResourceConfigSource())
}

// Generic returns the resources that a control plane of Kubernetes' GenericStorageProviders can serve, without pods.
func Generic() sets.Set[schema.GroupResource] {
	all := possible(controlplane.DefaultGenericAPIResourceConfigSource())
	for gr := range all {
		if gr.Group == "" && !genericCore.Has(gr.Resource) || podBound.Has(gr) {
			all.Delete(gr)
		}
	}
	return all.Union(genericAlso)
}

// possible returns the resources of the versions that a configuration names, whether on or off, and the resources of
// the servers of custom resources and aggregated APIs.
func possible(config *serverstorage.ResourceConfig) sets.Set[schema.GroupResource] {
	resources, names := sets.New[schema.GroupResource](), sets.New[string]()
	for _, l := range Lifecycles() {
		_, named := config.GroupVersionConfigs[l.GroupVersion()]
		if named || apiextensionsapiserver.Scheme.IsGroupRegistered(l.Group) || aggregatorscheme.Scheme.IsGroupRegistered(l.Group) {
			resources.Insert(l.GroupResource())
			names.Insert(l.Resource)
		}
	}
	for gr := range known() {
		if gr.Group == formerHome && names.Has(gr.Resource) {
			resources.Insert(gr)
		}
	}
	return resources
}

func known() sets.Set[schema.GroupResource] {
	resources := sets.New[schema.GroupResource]()
	for _, l := range Lifecycles() {
		resources.Insert(l.GroupResource())
	}
	return resources
}

// betaOnByDefault are the beta versions that kube-apiserver serves without being asked.
func betaOnByDefault() sets.Set[schema.GroupVersion] {
	on := sets.New[schema.GroupVersion]()
	for gv, enabled := range controlplane.DefaultAPIResourceConfigSource().GroupVersionConfigs {
		if enabled && strings.Contains(gv.Version, "beta") {
			on.Insert(gv)
		}
	}
	return on
}

// withoutIdle returns the runtime config without settings that Kubernetes accepts and that change nothing here,
// because this control plane has no such resource: versions and resources of other control planes, and disabled
// resources that no longer exist anywhere, such as podsecuritypolicies.
func withoutIdle(config map[string]string, rows []compat.Lifecycle) map[string]string {
	apis := sets.New[string]()
	for _, l := range rows {
		apis.Insert(l.GroupVersion().String(), l.GroupVersion().String()+"/"+l.Resource)
	}
	config = maps.Clone(config)
	maps.DeleteFunc(config, func(key, value string) bool {
		api := strings.TrimPrefix(key, "/")
		if apis.Has(api) {
			return false
		}
		parts := strings.Split(key, "/")
		if len(parts) < 2 || len(parts) > 3 || !registered(schema.GroupVersion{Group: parts[0], Version: parts[1]}) {
			return false
		}
		on, err := strconv.ParseBool(value)
		return len(parts) == 2 || known().Has(schema.GroupResource{Group: parts[0], Resource: parts[2]}) || err == nil && !on
	})
	return config
}

// registered says whether this binary has types of the version.
func registered(gv schema.GroupVersion) bool {
	return slices.ContainsFunc(Schemes, func(s *runtime.Scheme) bool {
		return s.IsVersionRegistered(gv)
	})
}

// Kinds returns the kinds of all resources of a plan, including those that are not served.
func Kinds(plan *compat.Plan) map[schema.GroupResource]string {
	kinds := map[schema.GroupResource]string{}
	for _, r := range plan.Resources {
		kinds[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = r.Kind
	}
	return kinds
}
