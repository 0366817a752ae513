// Package owncrds installs CustomResourceDefinitions of the project's own.
package owncrds

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Install installs definitions and brings older ones up to date.
func Install(ctx context.Context, c client.Client, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, want := range crds {
		if err := ensure(ctx, c, want); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
		}
	}
	return nil
}

func ensure(ctx context.Context, c client.Client, want *apiextensionsv1.CustomResourceDefinition) error {
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
