package status

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/stock/observed"
)

// Named returns a CustomResourceDefinition of which only the metadata was read. Its name determines its resource.
func Named(metadata metav1.ObjectMeta) apiextensionsv1.CustomResourceDefinition {
	gr := schema.ParseGroupResource(metadata.Name)
	crd := apiextensionsv1.CustomResourceDefinition{ObjectMeta: metadata}
	crd.Spec.Group, crd.Spec.Names.Plural = gr.Group, gr.Resource
	return crd
}

// Needs are the names of the CustomResourceDefinitions that Of has to have whole: of the others it
// says the same if they are Named.
func (o Observed) Needs() (names []string) {
	x := indexed(o)
	for i := range o.CRDs {
		crd := &o.CRDs[i]
		r := x.get(migrationv1alpha1.ResourceOf(crd))
		_, prunes := crd.Annotations[observed.PruneAnnotation]
		refused := r.state != nil && r.state.Annotations[migrationv1alpha1.PruneRefusedAnnotation] != ""
		if prunes || refused || r.changed() || r.unseen() && len(o.States) > 0 || migrationv1alpha1.Held(crd.Annotations) || len(x.problems(r)) > 0 {
			names = append(names, crd.Name)
		}
	}
	return names
}
