package storageversion

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IsGone says whether an error proves that the object asked for does not exist. Only a
// 404 that names the object does: one for a path that is not served, as a server answers
// while it starts or a proxy in its stead, proves nothing.
func IsGone(err error) bool {
	if !apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != ""
}
