package storageversion

import (
	"maps"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
)

// PrepareCreate turns the object that a client sent into the new StorageVersion that is stored.
// Its epoch annotations are computed, whatever the client sent; its status is kept, so that a
// server creates the object with its report in one write.
func PrepareCreate(sv *v1alpha1.StorageVersion) { raiseEpoch(sv, agree.History{}) }

// PrepareUpdate turns an update into the object that is stored in old's place.
func PrepareUpdate(sv, old *v1alpha1.StorageVersion) {
	sv.Status = old.Status
	sv.Annotations = withSeals(sv.Annotations, old.Annotations)
	keepEpoch(sv, old)
}

// PrepareStatusUpdate turns a status update into the object that is stored in old's place.
func PrepareStatusUpdate(sv, old *v1alpha1.StorageVersion) {
	sv.Spec = old.Spec
	sent := sv.Annotations
	metav1.ResetObjectMetaForStatus(sv, old)
	sv.Annotations = withSeals(old.Annotations, sent)
	keepEpoch(sv, old)
}

// withSeals returns annotations with the seals of another object's: they go with the reports.
func withSeals(annotations, from map[string]string) map[string]string {
	merged := maps.Clone(annotations)
	delete(merged, SealsAnnotation)
	if seals, ok := from[SealsAnnotation]; ok {
		if merged == nil {
			merged = map[string]string{}
		}
		merged[SealsAnnotation] = seals
	}
	return merged
}

// keepEpoch gives sv the history that follows from old's and the reports in sv. A history
// that cannot be read is left to validation, which refuses the update.
func keepEpoch(sv, old *v1alpha1.StorageVersion) {
	history, err := History(old)
	if err != nil {
		return
	}
	raiseEpoch(sv, history)
}

func raiseEpoch(sv *v1alpha1.StorageVersion, before agree.History) {
	sv.Annotations = maps.Clone(sv.Annotations)
	SetHistory(sv, before.Next(Reports(sv)))
}
