package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const bootstrapRetry = 500 * time.Millisecond

// bootstrap makes what users expect to find in a new cluster: the system namespaces, and what
// others trust the servers by. It tries again until it
// succeeds or ctx ends, since at first other servers' and its own gates may be closed.
func bootstrap(ctx context.Context, c client.Client, known trust) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(ctx context.Context) (bool, error) {
		// The trust comes last: it is in a namespace, and warns only once.
		if last = ensureNamespaces(ctx, c); last == nil {
			last = ensureTrust(ctx, c, known)
		}
		if last != nil {
			klog.FromContext(ctx).V(2).Info("The cluster's own objects cannot be made yet", "err", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func ensureNamespaces(ctx context.Context, c client.Client) error {
	for _, name := range immortalNamespaces {
		err := c.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			err = c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}
