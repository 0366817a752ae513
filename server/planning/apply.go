package planning

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/concord-dev/concord/compat"
)

// ApplyStorage has every resource of the plan stored in the version the plan names (KEP-4330, "StorageVersion Compatibility
// Versioning"), in place of the one that Kubernetes would take from a list made for its own default versions.
//
// The factory is the one that BuildGenericConfig returns, which a kube-apiserver's config holds as StorageFactory. It is asked
// for a resource's encoding when that resource's storage is built, so this may be called at any time before New. CRDs and
// APIServices have storage of their own, without a factory: the plan says their versions and nothing applies them here.
func ApplyStorage(plan *compat.Plan, factory serverstorage.StorageFactory) error {
	f, ok := factory.(*serverstorage.DefaultStorageFactory)
	if !ok {
		return fmt.Errorf("storage versions cannot be set: the storage factory is a %T", factory)
	}
	encoding, ok := f.ResourceEncodingConfig.(*serverstorage.DefaultResourceEncodingConfig)
	if !ok {
		return fmt.Errorf("storage versions cannot be set: the factory keeps them in a %T", f.ResourceEncodingConfig)
	}
	for _, r := range plan.Resources {
		if r.Storage.Empty() || !legacyscheme.Scheme.IsGroupRegistered(r.Group) {
			continue
		}
		encoding.SetResourceEncoding(schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Storage,
			schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal})
	}
	return nil
}

// ApplyAPIs has the control plane serve the versions that the plan serves. It takes the config that BuildGenericConfig
// returns, after --runtime-config was merged into it; Kubernetes reads it when it installs its APIs.
//
// StorageVersions are switched off here: package join serves them.
func ApplyAPIs(plan *compat.Plan, config *genericapiserver.Config) error {
	resources := config.MergedResourceConfig
	if resources == nil {
		return fmt.Errorf("a plan cannot be applied to a server without a resource config")
	}
	// APIs that were removed can stay for one more release: KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE.
	expiration, err := genericapiserver.NewResourceExpirationEvaluator(plan.Emulation)
	if err != nil {
		return err
	}
	rows := map[schema.GroupVersionResource]compat.Lifecycle{}
	for _, l := range Lifecycles() {
		rows[l.GroupVersionResource] = l
	}
	for _, r := range plan.Resources {
		for _, v := range r.Served {
			gvr := schema.GroupVersionResource{Group: r.Group, Version: v.Version, Resource: r.Resource}
			l := rows[gvr]
			switch {
			case elsewhere[gvr.GroupResource()]:
				resources.DisableResources(gvr)
			case v.Served:
				resources.EnableResources(gvr)
				if l.Introduced != nil && l.Introduced.GreaterThan(plan.Emulation) {
					// Else Kubernetes takes away again the versions that are newer than the emulated release. By version,
					// because for a resource named alone it forgets the subresources.
					resources.ExplicitGroupVersionConfigs[gvr.GroupVersion()] = true
					config.RuntimeConfigEmulationForwardCompatible = true
				}
			case !l.Gone && l.Removed != nil && !l.Removed.GreaterThan(plan.Emulation) &&
				expiration.ShouldServeForVersion(int(l.Removed.Major()), int(l.Removed.Minor())): //nolint:gosec // releases are small
			default:
				resources.DisableResources(gvr)
			}
		}
	}
	return nil
}
