package cluster

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Definition returns a CRD with the versions v1 and v2, which differ only in their names and accept any
// field. The version stores is the storage version. The kind is the resource's name in the singular.
func Definition(gr schema.GroupResource, stores string) *apiextensionsv1.CustomResourceDefinition {
	singular := strings.TrimSuffix(gr.Resource, "s")
	kind := strings.ToUpper(singular[:1]) + singular[1:]
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: gr.String()}}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: gr.Group, Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: gr.Resource, Singular: singular, Kind: kind, ListKind: kind + "List"},
	}
	for _, version := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == stores,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
		})
	}
	return crd
}
