package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const bootstrapRetry = 500 * time.Millisecond

// bootstrap makes what users expect to find in a new cluster and what the controllers
// need: the system namespaces, what others trust the servers by, and the CRDs. It tries again until it
// succeeds or ctx ends, since at first other servers' and its own gates may be closed.
func bootstrap(ctx context.Context, c client.Client, known trust, crds []*apiextensionsv1.CustomResourceDefinition) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(ctx context.Context) (bool, error) {
		// The trust comes last: it is in a namespace, and warns only once.
		if last = errors.Join(ensureNamespaces(ctx, c), ensureCRDs(ctx, c, crds)); last == nil {
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

// ensureCRDs installs the server's own CRDs and brings older ones up to date.
func ensureCRDs(ctx context.Context, c client.Client, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, want := range crds {
		if err := ensureCRD(ctx, c, want); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
		}
	}
	return nil
}

func ensureCRD(ctx context.Context, c client.Client, want *apiextensionsv1.CustomResourceDefinition) error {
	var have apiextensionsv1.CustomResourceDefinition
	err := c.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		err = c.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	// A server of another release may hold another schema: only a missing version or
	// column is worth a write, and defaulted fields are not compared.
	if equality.Semantic.DeepDerivative(want.Spec, have.Spec) {
		return nil
	}
	have.Spec = want.Spec
	if err := c.Update(ctx, &have); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}
