package planning

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	_ "k8s.io/kubernetes/pkg/controlplane" // installs every group into the scheme

	"github.com/concord-dev/concord/compat"
)

var lifecycles = sync.OnceValue(readLifecycles)

// Lifecycles returns in which Kubernetes releases each version of each built-in resource exists: what the types of this binary say, and the
// tables of this package for those that say nothing or are gone. Sorted by group, resource and version, the newest first.
//
// Versions that no release in range serves are among them where this binary still has their types: it decodes the
// objects that were stored in them.
func Lifecycles() []compat.Lifecycle { return slices.Clone(lifecycles()) }

func readLifecycles() []compat.Lifecycle {
	var all []compat.Lifecycle
	for _, scheme := range Schemes {
		for gvk, goType := range scheme.AllKnownTypes() {
			if l, ok := lifecycleOf(scheme, gvk, goType); ok {
				all = append(all, l)
			}
		}
	}
	for _, l := range lost {
		all = append(all, compat.Lifecycle{
			GroupVersionResource: l.GroupVersionResource, Kind: l.kind, Gone: true,
			Introduced: release(l.introduced), Deprecated: release(l.deprecated), Removed: release(l.removed),
		})
	}
	slices.SortFunc(all, func(a, b compat.Lifecycle) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource),
			apimachineryversion.CompareKubeAwareVersionStrings(b.Version, a.Version))
	})
	return all
}

// lifecycleOf reads one type of a scheme; false if it is no resource.
func lifecycleOf(scheme *runtime.Scheme, gvk schema.GroupVersionKind, goType reflect.Type) (compat.Lifecycle, bool) {
	object := reflect.New(goType).Interface()
	_, named := object.(metav1.Object)
	listed := scheme.Recognizes(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if gvk.Version == runtime.APIVersionInternal || resourceless[gvk.Group] || !named || !listed && !unlisted[gvk.GroupKind()] {
		return compat.Lifecycle{}, false
	}
	// The guess is right for every kind of Kubernetes; TestResourceNames compares.
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	l := compat.Lifecycle{GroupVersionResource: gvr, Kind: gvk.Kind, NotPersisted: !listed || unstored[gvr.GroupResource()] || gvr.Group == formerHome}
	l.Kept = storedAs[gvr.GroupResource()] == gvr.GroupVersion()
	l.Introduced, l.Deprecated, l.Removed = told(object)
	if s, ok := untold[gvk.GroupVersion()]; ok && l.Introduced == nil {
		l.Introduced, l.Deprecated, l.Removed = release(s.introduced), release(s.deprecated), release(s.removed)
	}
	return l, true
}

// told returns the releases in the generated lifecycle methods of the types of k8s.io/api.
func told(object any) (introduced, deprecated, removed *version.Version) {
	if o, ok := object.(interface{ APILifecycleIntroduced() (int, int) }); ok {
		introduced = majorMinor(o.APILifecycleIntroduced())
	}
	if o, ok := object.(interface{ APILifecycleDeprecated() (int, int) }); ok {
		deprecated = majorMinor(o.APILifecycleDeprecated())
	}
	if o, ok := object.(interface{ APILifecycleRemoved() (int, int) }); ok {
		removed = majorMinor(o.APILifecycleRemoved())
	}
	return introduced, deprecated, removed
}

func majorMinor(major, minor int) *version.Version {
	return version.MajorMinor(uint(major), uint(minor)) //nolint:gosec // releases are small and positive
}
