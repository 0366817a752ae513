package storageversion

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// Unavailable is a 503 to a request for a resource, which clients repeat by themselves after a second.
func Unavailable(gr schema.GroupResource, format string, args ...any) error {
	err := apierrors.NewServiceUnavailable(fmt.Sprintf(format, args...))
	err.ErrStatus.Details = &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, RetryAfterSeconds: 1}
	return err
}
