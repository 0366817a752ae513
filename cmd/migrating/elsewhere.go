package migrating

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/connect"
)

// errNotServed is the error of counting where the server asked does not serve a resource.
var errNotServed = errors.New("the server asked does not serve it now")

// elsewhere is the estimate of a resource that the server asked has no store of.
func elsewhere(ctx context.Context, config *rest.Config, cluster client.Client, gr schema.GroupResource) (estimate, error) {
	state := &migrationv1alpha1.StorageState{}
	if err := cluster.Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(gr)}, state); client.IgnoreNotFound(err) != nil {
		return estimate{}, err
	}
	objects, err := listed(ctx, config, gr)
	if ctx.Err() != nil {
		return estimate{}, ctx.Err()
	}
	return ofElsewhere(gr, state.Status.CurrentEncoding, objects, err), nil
}

// ofElsewhere returns what is known about a resource that another server stores. The error says why its objects could
// not be counted. A resource of an aggregated API is served by the server that was asked, and only a served resource
// can be migrated through the API; a resource that is not served may be one that only servers of another release serve
// and store.
func ofElsewhere(gr schema.GroupResource, agreed string, objects *int64, err error) estimate {
	e := estimate{Resource: gr.String(), Encoding: agreed, Objects: objects, Encodings: []encodingRow{}, Basis: "unknown"}
	if agreed == migrationv1alpha1.Unknown {
		e.Encoding = ""
	}
	switch {
	case errors.Is(err, errNotServed):
		e.Elsewhere = err.Error()
	case err != nil:
		e.Elsewhere = fmt.Sprintf("it is migrated through the API, and cannot be listed: %v", err)
	default:
		e.Elsewhere = "it is migrated through the API"
	}
	return e
}

// listed counts the objects of a resource as a list of it does; nil if that does not.
func listed(ctx context.Context, config *rest.Config, gr schema.GroupResource) (*int64, error) {
	config = connect.WithTimeout(config)
	gvr, err := Discover(config, gr.String())
	switch {
	case meta.IsNoMatchError(err), err == nil && gvr.GroupResource() != gr:
		return nil, errNotServed
	case err != nil:
		return nil, err
	}
	api, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	list, err := api.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	return countOf(list), nil
}

// countOf returns how many objects there are according to the first page of a list; nil if the page does not say.
func countOf(list *metav1.PartialObjectMetadataList) *int64 {
	here := int64(len(list.Items))
	switch {
	case list.Continue == "":
		return &here
	case list.RemainingItemCount == nil:
		return nil
	}
	return ptr.To(here + *list.RemainingItemCount)
}

// orDash formats a number; a dash if it is not known.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}
