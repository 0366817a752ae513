package load

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// fillers is how many objects Fill creates at a time.
const fillers = 16

// Fill creates n marked objects through one server, named "<prefix>-<number>".
func Fill(ctx context.Context, endpoint Endpoint, resource Resource, prefix string, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fillers)
	for i := range n {
		group.Go(func() error {
			name := fmt.Sprintf("%s-%d", prefix, i)
			object := resource.object(name, fmt.Sprintf("%s/fill-%s-%s", endpoint.Name, resource.Resource, name), "filled")
			return Create(ctx, resource.through(endpoint), object)
		})
	}
	return group.Wait()
}

// createAttempts is how often Create tries. Etcd takes seven seconds to be late.
const createAttempts = 5

// Create creates an object that is not there, again if etcd was late.
func Create(ctx context.Context, objects dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	var late error
	for range createAttempts {
		_, err := objects.Create(ctx, object, metav1.CreateOptions{})
		switch {
		case late != nil && apierrors.IsAlreadyExists(err):
			return nil // made by the attempt before
		case !EtcdLate(err):
			return err
		}
		late = err
	}
	return late
}
