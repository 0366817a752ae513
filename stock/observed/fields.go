package observed

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// seedManager is the manager that is entered, as the owner of no field, into an object that would
// have no managedFields left: server-side apply would make up an owner of all fields for it.
const seedManager = "before-first-apply"

// CleanFields takes out of an object's managedFields the entries that name a version of its
// group that is not served any more, as Cluster API's crdmigrator does: server-side apply
// trips over them. seed is a version that is served. It says whether there were any.
func CleanFields(entries []metav1.ManagedFieldsEntry, group string, served []string, seed string) ([]metav1.ManagedFieldsEntry, bool) {
	kept := slices.DeleteFunc(slices.Clone(entries), func(e metav1.ManagedFieldsEntry) bool {
		gv, err := schema.ParseGroupVersion(e.APIVersion)
		return err == nil && gv.Group == group && !slices.Contains(served, gv.Version)
	})
	if len(kept) == len(entries) {
		return entries, false
	}
	if len(kept) == 0 {
		kept = []metav1.ManagedFieldsEntry{{
			Manager: seedManager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: schema.GroupVersion{Group: group, Version: seed}.String(),
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}"),
		}}
	}
	return kept, true
}
