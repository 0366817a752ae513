package storageversion

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Unfenced returns the resources that are exempt from the fence, because they exist in one version only and are needed
// before any report can be made. They are never encrypted either: nobody could prove that no server
// writes them with an old key.
func Unfenced() sets.Set[schema.GroupResource] {
	return sets.New(
		schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
		schema.GroupResource{Resource: "namespaces"},
		Resource,
	)
}
