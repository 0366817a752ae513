package v1alpha1

import (
	"crypto/sha256"
	"encoding/base64"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// StorageVersionHash returns the hash that discovery shows as storageVersionHash for a
// resource whose objects are stored as this kind. KEP-2343 keeps these hashes in
// StorageStates.
func StorageVersionHash(gvk schema.GroupVersionKind) string {
	sum := sha256.Sum256([]byte(gvk.Group + "/" + gvk.Version + "/" + gvk.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}
