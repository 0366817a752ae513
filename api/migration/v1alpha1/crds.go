package v1alpha1

import (
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

var (
	//go:embed storagestates.yaml
	storageStates []byte
	//go:embed storageversionmigrations.yaml
	storageVersionMigrations []byte
)

// CRDs returns new copies of the CustomResourceDefinitions that install this package's
// types. They are cluster-scoped and have the status subresource.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	manifests := [][]byte{storageStates, storageVersionMigrations}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(manifests))
	for _, manifest := range manifests {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
			// The manifests are part of the binary and tested.
			panic(fmt.Sprintf("embedded CustomResourceDefinition: %v", err))
		}
		crds = append(crds, crd)
	}
	return crds
}

// WithoutSchemas drops the schemas and the printed columns of a CustomResourceDefinition, which are most of its
// bytes. It is a transform of informers.
func WithoutSchemas(obj any) (any, error) {
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		crd.ManagedFields = nil
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema, crd.Spec.Versions[i].AdditionalPrinterColumns = nil, nil
		}
	}
	return obj, nil
}
