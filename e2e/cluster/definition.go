package cluster

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ChangeDefinition changes a CRD, and tries again after a conflict.
func ChangeDefinition(ctx context.Context, objects client.Client, name string, change func(*apiextensionsv1.CustomResourceDefinition)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := objects.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return err
		}
		change(crd)
		return objects.Update(ctx, crd)
	})
}

// Store returns a change that makes another version the storage version of a CRD.
func Store(version string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Storage = crd.Spec.Versions[i].Name == version
		}
	}
}
