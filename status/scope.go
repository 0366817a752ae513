package status

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// byScope divides failed objects: left are objects that were stored while a definition of the same name had the other
// scope.
func (r *resource) byScope(named []migrationv1alpha1.MigrationFailure) (left, others []migrationv1alpha1.MigrationFailure) {
	for _, f := range named {
		if r.crd != nil && r.crd.Spec.Scope != "" && (f.Namespace != "") != (r.crd.Spec.Scope == apiextensionsv1.NamespaceScoped) {
			left = append(left, f)
		} else {
			others = append(others, f)
		}
	}
	return left, others
}

// leftOver is the problem of objects that are of another scope than their definition: every request for one answers 404.
func leftOver(r *resource, m *migrationv1alpha1.StorageVersionMigration, n, total int64, named []migrationv1alpha1.MigrationFailure) Problem {
	is, was := r.crd.Spec.Scope, apiextensionsv1.NamespaceScoped
	if is == was {
		was = apiextensionsv1.ClusterScoped
	}
	text := fmt.Sprintf("%s: %d of %d objects cannot be migrated to %s: they are left over from a definition with scope: %s, and with scope: %s no request reaches them", r, n, total, toEncoding(r, m), was, is)
	return ofObjects(r, m, n, named, text, fmt.Sprintf("take their keys out of etcd; or make the CustomResourceDefinition %s with scope: %s again, under which they can be read and deleted (one that is deleted takes the objects of its own scope with it)", r.crd.Name, was))
}
