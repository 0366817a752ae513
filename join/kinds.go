package join

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/concord-dev/concord/controller/trigger"
)

// kinds knows the kinds of built-in resources that only a server of another release may
// serve, and asks discovery for the others.
type kinds struct {
	known     map[schema.GroupResource]string
	served    trigger.Kinds
	discovery discovery.DiscoveryInterface
}

func newKinds(known map[schema.GroupResource]string, d discovery.DiscoveryInterface) kinds {
	// This reads discovery again before it reports that a resource is not served.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
	return kinds{known: known, served: trigger.KindsOf(mapper), discovery: d}
}

// Kind implements trigger.Kinds.
func (k kinds) Kind(ctx context.Context, gr schema.GroupResource) (string, error) {
	if kind, ok := k.known[gr]; ok {
		return kind, nil
	}
	kind, err := k.served.Kind(ctx, gr)
	if meta.IsNoMatchError(err) {
		if away := k.away(gr.Group); away != nil {
			return "", fmt.Errorf("nobody knows whether %s is served: %w", gr, away)
		}
	}
	return kind, err
}

// away explains why discovery does not list everything in a group: the aggregated API server of one of its versions
// does not answer. The mapper hides that.
func (k kinds) away(group string) error {
	_, _, err := k.discovery.ServerGroupsAndResources()
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) {
		return err
	}
	for gv, why := range failed.Groups {
		if gv.Group == group {
			return fmt.Errorf("%s: %w", gv, why)
		}
	}
	return nil
}
