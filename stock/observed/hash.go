package observed

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// Invert returns the version to which discovery's storageVersionHash belongs, among the known versions of the kind.
func Invert(hash, kind string, known []schema.GroupVersion) (agree.Encoding, bool) {
	i := slices.IndexFunc(known, func(gv schema.GroupVersion) bool {
		return migrationv1alpha1.StorageVersionHash(gv.WithKind(kind)) == hash
	})
	if hash == "" || i < 0 {
		return "", false
	}
	return agree.Encoding(known[i].String()), true
}
