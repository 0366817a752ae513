package load

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			_, err := resource.through(endpoint).Create(ctx, object, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}
