package v1alpha1

import (
	_ "embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/agree"
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

// ResourceOf is the resource that a definition is of.
func ResourceOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

// EncodingOf returns the encoding of objects that are stored in one of a CustomResourceDefinition's versions.
func EncodingOf(crd *apiextensionsv1.CustomResourceDefinition, version string) agree.Encoding {
	return agree.Encoding(schema.GroupVersion{Group: crd.Spec.Group, Version: version}.String())
}

// Stores is the encoding that a definition says to store; empty if it names none.
func Stores(crd *apiextensionsv1.CustomResourceDefinition) agree.Encoding {
	version, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return ""
	}
	return EncodingOf(crd, version)
}

// StoredVersions are the encodings that a definition's status names.
func StoredVersions(crd *apiextensionsv1.CustomResourceDefinition) (all []agree.Encoding) {
	for _, v := range crd.Status.StoredVersions {
		all = append(all, EncodingOf(crd, v))
	}
	return all
}

// WithoutSchemas drops the schemas and the printed columns of a CustomResourceDefinition, and kubectl's copy of
// them, which are most of its bytes. It is a transform of informers.
func WithoutSchemas(obj any) (any, error) {
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		crd.ManagedFields = nil
		delete(crd.Annotations, corev1.LastAppliedConfigAnnotation)
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema, crd.Spec.Versions[i].AdditionalPrinterColumns = nil, nil
		}
	}
	return obj, nil
}
