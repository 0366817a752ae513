package migrating

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/evolve"
)

// NobodyLooks is why nothing is known of how a cluster's objects are stored.
const NobodyLooks = "there are no StorageStates, which tell how objects are stored: concord controllers make them in a stock cluster, and servers of Concord in others; see that these run, and wait until they have looked"

// resources returns the resources that the arguments name, in their order, or all stored resources.
func (o *migrateOptions) resources(ctx context.Context, config *rest.Config, cluster client.Client, args []string) ([]schema.GroupResource, error) {
	var states migrationv1alpha1.StorageStateList
	if err := cluster.List(ctx, &states); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("list StorageStates: %w", err)
	}
	var stored, unserved []schema.GroupResource
	for _, s := range states.Items {
		gr := schema.GroupResource{Group: s.Spec.Resource.Group, Resource: s.Spec.Resource.Resource}
		stored = append(stored, gr)
		if s.Status.Message == evolve.Gone {
			unserved = append(unserved, gr)
		}
	}
	if len(stored) == 0 {
		return nil, errors.New(NobodyLooks)
	}
	reported, err := reported(ctx, cluster)
	if err != nil {
		return nil, err
	}
	stored = append(stored, reported...)
	slices.SortFunc(stored, compare)
	stored = slices.Compact(stored)
	if o.all {
		return o.served(stored, unserved)
	}
	var chosen []schema.GroupResource
	for _, arg := range args {
		gr, err := Resolve(config, arg, stored)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(chosen, gr) {
			chosen = append(chosen, gr)
		}
	}
	return o.served(chosen, unserved)
}

// reported returns the resources that servers report. A resource that was just reported for the first time has no
// StorageState for a moment. If StorageVersions are not served, or may not be listed, there are none.
func reported(ctx context.Context, cluster client.Client) (all []schema.GroupResource, err error) {
	var versions apiserverinternalv1alpha1.StorageVersionList
	if err := cluster.List(ctx, &versions); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list StorageVersions: %w", err)
	}
	for i := range versions.Items {
		if gr, err := storageversion.GroupResource(versions.Items[i].Name); err == nil && len(versions.Items[i].Status.StorageVersions) > 0 {
			all = append(all, gr)
		}
	}
	return all, nil
}

// served returns the resources that can be migrated. For a resource that no server serves it returns an error; with
// --all such a resource is left out. A dry run keeps all of them.
func (o *migrateOptions) served(chosen, unserved []schema.GroupResource) ([]schema.GroupResource, error) {
	var served []schema.GroupResource
	for _, gr := range chosen {
		switch here := !slices.Contains(unserved, gr); {
		case here || o.dryRun:
			served = append(served, gr)
		case !o.all:
			return nil, fmt.Errorf("no server serves %s now: what is stored of it stays as it is", gr)
		}
	}
	if len(served) == 0 {
		return nil, errors.New("no server serves any of the resources that are stored")
	}
	return served, nil
}

// compare orders by group, then by resource.
func compare(a, b schema.GroupResource) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
}

// Resolve finds the stored resource that a name means. A name that is no plural is looked up in discovery.
func Resolve(config *rest.Config, name string, stored []schema.GroupResource) (schema.GroupResource, error) {
	return resolve(name, stored, func(name string) (schema.GroupResource, error) {
		gvr, err := discover(config, name)
		return gvr.GroupResource(), err
	})
}

func resolve(name string, stored []schema.GroupResource, discover func(string) (schema.GroupResource, error)) (schema.GroupResource, error) {
	var found []schema.GroupResource
	for _, gr := range stored {
		if gr.String() == name {
			return gr, nil
		}
		if gr.Resource == name {
			found = append(found, gr)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return schema.GroupResource{}, fmt.Errorf("%q may be %s: give the name with its group", name, Names(found))
	}
	if name == "" {
		return schema.GroupResource{}, errors.New("the name of a resource is empty; kubectl get storagestates names those that are stored")
	}
	gr, err := discover(name)
	switch {
	case err == nil && slices.Contains(stored, gr):
		return gr, nil
	case err != nil && !meta.IsNoMatchError(err) && !meta.IsAmbiguousError(err):
		return schema.GroupResource{}, fmt.Errorf("look for %q: %w", name, err)
	}
	return schema.GroupResource{}, fmt.Errorf("%q is no resource that is stored; kubectl get storagestates names those that are", name)
}

// Names returns the names of resources in one line.
func Names(resources []schema.GroupResource) string {
	var names []string
	for _, gr := range resources {
		names = append(names, gr.String())
	}
	return strings.Join(names, ", ")
}

// discover finds the resource of a short, singular or partly qualified name, in the version
// that the server prefers, or in that of a name such as widgets.v1.example.com.
func discover(config *rest.Config, name string) (schema.GroupVersionResource, error) {
	served, err := discovery.NewDiscoveryClientForConfig(connect.WithTimeout(config))
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	cached := memory.NewMemCacheClient(served)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	if versioned, _ := schema.ParseResourceArg(name); versioned != nil {
		if gvr, err := mapper.ResourceFor(*versioned); err == nil {
			return gvr, nil
		}
	}
	return mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
}
