package v1alpha1

import (
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed clusterversions.yaml
var clusterVersions []byte

// CRDs returns new copies of the CustomResourceDefinitions that install this package's
// types. They are cluster-scoped and have the status subresource.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(clusterVersions, crd); err != nil {
		// The manifest is part of the binary and tested.
		panic(fmt.Sprintf("embedded CustomResourceDefinition: %v", err))
	}
	return []*apiextensionsv1.CustomResourceDefinition{crd}
}
