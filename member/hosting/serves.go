package hosting

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/api/storageversion"
)

// Discovery is Config.Serves by a client of the host. It asks discovery, which everybody may read: whether this server may
// read the objects themselves matters only where there are any.
func Discovery(host rest.Interface) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		served := &metav1.APIResourceList{}
		err := host.Get().AbsPath("/apis", v1alpha1.SchemeGroupVersion.Group, v1alpha1.SchemeGroupVersion.Version).Do(ctx).Into(served)
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("whether it serves StorageVersions: %w", err)
		}
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == storageversion.Resource.Resource }), nil
	}
}
