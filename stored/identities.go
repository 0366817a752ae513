package stored

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/api/storageversion"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Identities reads the identity Leases of the control plane's servers straight from etcd. Their resourceVersion is the
// revision that they have there, so that it changes with every renewal.
func Identities(ctx context.Context, reader migratestore.Reader, layout Layout) ([]*coordinationv1.Lease, error) {
	var leases []*coordinationv1.Lease
	under := layout.Of(schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}, false) + storageversion.IdentityNamespace + "/"
	err := migratestore.Walk(ctx, reader, under, func(e migratestore.Entry) error {
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.Value, nil, nil)
		lease, ok := obj.(*coordinationv1.Lease)
		if err != nil || !ok || lease.Labels[storageversion.IdentityLabel] != storageversion.IdentityLabelValue || !storageversion.IsServer(lease.Name) || storageversion.IsAggregated(lease) {
			return nil //nolint:nilerr // it is nobody's identity
		}
		lease.ResourceVersion = fmt.Sprint(e.ModRevision)
		leases = append(leases, lease)
		return nil
	})
	return leases, err
}
