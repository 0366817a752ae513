package storageversion

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsGone(t *testing.T) {
	notFound := apierrors.NewNotFound(Resource, "x")
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"the object is gone", notFound, true},
		{"wrapped", fmt.Errorf("get it: %w", notFound), true},
		{"the path is not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", Resource, "x", "404 page not found", 0, true), false},
		{"the resource is not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", Resource, "", "", 0, false), false},
		{"no details", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}, false},
		{"a timeout", apierrors.NewTimeoutError("x", 1), false},
		{"no answer", errors.New("connection refused"), false},
	} {
		if got := IsGone(test.err); got != test.want {
			t.Errorf("%s: IsGone(%v) = %t", test.name, test.err, got)
		}
	}
}
