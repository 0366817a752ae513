package builtin

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/compat"
)

// release is a Kubernetes minor release; the zero value means none.
type release struct{ major, minor int }

func (r release) version() *version.Version {
	if r == (release{}) {
		return nil
	}
	return version.MajorMinor(uint(r.major), uint(r.minor))
}

// untold are the releases that introduced the versions of which k8s.io/api says nothing.
var untold = map[schema.GroupVersionResource]release{
	{Group: apiserverGroup, Version: "v1alpha1", Resource: "storageversions"}: {1, 20},
}

// gone are the versions that a release in range served and whose types k8s.io/api has lost.
var gone = []struct {
	schema.GroupVersionResource
	kind                            string
	introduced, deprecated, removed release
}{
	{
		GroupVersionResource: schema.GroupVersionResource{Group: storagemigrationGroup, Version: "v1alpha1", Resource: "storageversionmigrations"},
		kind:                 "StorageVersionMigration",
		introduced:           release{1, 30}, deprecated: release{1, 33}, removed: release{1, 35},
	},
}

// Lifecycles returns in which Kubernetes releases each version of each built-in resource
// exists, from what the Go types say of themselves and a table for those that say nothing
// or are gone.
func Lifecycles() []compat.Lifecycle {
	var lifecycles []compat.Lifecycle
	for _, k := range kinds() {
		for _, t := range k.versions {
			lifecycles = append(lifecycles, lifecycleOf(k, t))
		}
	}
	for _, g := range gone {
		lifecycles = append(lifecycles, compat.Lifecycle{
			GroupVersionResource: g.GroupVersionResource,
			Kind:                 g.kind,
			Introduced:           g.introduced.version(),
			Deprecated:           g.deprecated.version(),
			Removed:              g.removed.version(),
			Gone:                 true,
		})
	}
	return lifecycles
}

func lifecycleOf(k kind, t types) compat.Lifecycle {
	gvr := k.groupVersion(t).WithResource(k.Resource)
	introduced, deprecated, removed := told(t.object)
	if introduced == (release{}) {
		introduced = untold[gvr]
	}
	return compat.Lifecycle{
		GroupVersionResource: gvr,
		Kind:                 k.Kind,
		Introduced:           introduced.version(),
		Deprecated:           deprecated.version(),
		Removed:              removed.version(),
		NotPersisted:         k.transient || k.shares(),
	}
}

// told returns what the methods generated for k8s.io/api say of a type.
func told(object runtime.Object) (introduced, deprecated, removed release) {
	if o, ok := object.(interface{ APILifecycleIntroduced() (int, int) }); ok {
		introduced.major, introduced.minor = o.APILifecycleIntroduced()
	}
	if o, ok := object.(interface{ APILifecycleDeprecated() (int, int) }); ok {
		deprecated.major, deprecated.minor = o.APILifecycleDeprecated()
	}
	if o, ok := object.(interface{ APILifecycleRemoved() (int, int) }); ok {
		removed.major, removed.minor = o.APILifecycleRemoved()
	}
	return introduced, deprecated, removed
}
