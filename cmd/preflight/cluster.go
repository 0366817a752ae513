package preflight

import (
	"context"
	"errors"
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/verdict"
)

// inCluster reads what a live cluster remembers, and has its servers count where that is asked
// for.
func inCluster(ctx context.Context, config *rest.Config, known []schema.GroupResource) (*World, error) {
	clock, asking := &connect.Clock{}, connect.WithTimeout(config)
	clock.SetBy(asking)
	cluster, err := connect.NewClient(asking)
	if err != nil {
		return nil, err
	}
	world, err := readCluster(ctx, cluster, clock, known)
	if err != nil {
		return nil, fmt.Errorf("the cluster at %s: %w", config.Host, err)
	}
	patient := rest.CopyConfig(config)
	patient.Timeout = 0 // a census takes as long as there are objects
	world.Count = func(ctx context.Context, gr schema.GroupResource) (*compat.StoredCensus, error) {
		return countIn(ctx, cluster, patient, gr)
	}
	objects, err := dynamic.NewForConfig(connect.WithTimeout(config))
	if err != nil {
		return nil, fmt.Errorf("the cluster at %s: %w", config.Host, err)
	}
	world.List = func(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
		return listIn(ctx, objects, gvr, visit)
	}
	return world, nil
}

// listIn is World.List of a live cluster.
func listIn(ctx context.Context, objects dynamic.Interface, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return objects.Resource(gvr).List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		visit(o.(*unstructured.Unstructured))
		return nil
	})
	return client.IgnoreNotFound(err) // such as a resource that this server does not serve
}

func readCluster(ctx context.Context, cluster client.Client, clock *connect.Clock, known []schema.GroupResource) (*World, error) {
	var states migrationv1alpha1.StorageStateList
	if err := cluster.List(ctx, &states); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list StorageStates: %w", err)
	}
	var versions apiserverinternalv1alpha1.StorageVersionList
	err := cluster.List(ctx, &versions)
	unserved := apierrors.IsNotFound(err)
	if err != nil && !unserved {
		return nil, fmt.Errorf("list StorageVersions: %w", err)
	}
	var migrations migrationv1alpha1.StorageVersionMigrationList
	if err := cluster.List(ctx, &migrations); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list StorageVersionMigrations: %w", err)
	}
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := cluster.List(ctx, &crds); err != nil {
		return nil, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	var leases coordinationv1.LeaseList
	err = cluster.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabelsSelector{Selector: storageversion.Identities})
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) { // they only help to tell why nobody could tell
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	world := &World{Definitions: map[schema.GroupResource]*verdict.Definition{}}
	for i := range crds.Items {
		d := verdict.DefinitionOf(&crds.Items[i])
		world.Definitions[d.Resource] = &d
	}
	world.Stored = verdict.Cluster{States: states.Items, Versions: versions.Items, Migrations: migrations.Items, Definitions: world.Definitions, Leases: leases.Items, Now: clock.Now(), Unserved: unserved}.Stored(known)
	return world, nil
}

// countIn has a server count a resource's objects, also where no server stores it any more. An
// encoding that servers began to write while it counted is not in the census: then there is none.
func countIn(ctx context.Context, cluster client.Client, config *rest.Config, gr schema.GroupResource) (*compat.StoredCensus, error) {
	before, err := epochOf(ctx, cluster, gr)
	if err != nil {
		return nil, err
	}
	counted, err := migrating.TakeCensus(ctx, config, gr, migrating.Decoded)
	switch {
	case before == epoch{} && errors.Is(err, migrating.ErrNoCensus): // no server takes censuses
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch after, err := epochOf(ctx, cluster, gr); {
	case err != nil:
		return nil, err
	case after != before:
		return nil, errors.New("servers began to write it differently meanwhile")
	}
	return rowsOf(counted), nil
}

// rowsOf is a server's census in the form in which it is judged.
func rowsOf(counted *census.Resource) *compat.StoredCensus {
	taken := &compat.StoredCensus{Objects: map[string]int64{}, First: map[string][]string{}}
	for _, row := range counted.Rows {
		if row.Encoding == "unknown" {
			taken.Unreadable += row.Objects
			taken.First[""] = counted.First[row.Encoding]
			continue
		}
		plain := string(agree.Encoding(row.Encoding).Plain())
		taken.Objects[plain] += row.Objects
		taken.First[plain] = append(taken.First[plain], counted.First[row.Encoding]...)
	}
	return taken
}

// epoch is a StorageVersion's uid and epoch.
type epoch struct {
	uid   string
	epoch int64
}

// epochOf reads the epoch of a resource's StorageVersion; none if there is none, without which no
// server writes the resource.
func epochOf(ctx context.Context, cluster client.Client, gr schema.GroupResource) (epoch, error) {
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	switch err := cluster.Get(ctx, client.ObjectKey{Name: storageversion.Name(gr)}, sv); {
	case apierrors.IsNotFound(err):
		return epoch{}, nil
	case err != nil:
		return epoch{}, fmt.Errorf("its StorageVersion: %w", err)
	}
	history, err := storageversion.History(sv)
	return epoch{string(sv.UID), history.Epoch}, err
}
