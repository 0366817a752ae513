package load

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func unavailableError(retryAfter int32) error {
	err := apierrors.NewServiceUnavailable("wait for storage version registration")
	if retryAfter > 0 {
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	return err
}

func TestClassify(t *testing.T) {
	sent := func(err error) error { return &url.Error{Op: "Post", URL: "https://127.0.0.1:1", Err: err} }
	gr := schema.GroupResource{Resource: "things"}
	for _, tt := range []struct {
		name     string
		err      error
		creation bool
		want     Outcome
	}{
		{"no error", nil, false, Acknowledged},
		{"503 with Retry-After", unavailableError(1), false, Unavailable},
		{"503 without", unavailableError(0), false, Unexpected},
		{"429", apierrors.NewTooManyRequests("later", 1), false, Unexpected},
		{"500", apierrors.NewInternalError(errors.New("etcdserver: request timed out")), false, Unexpected},
		{"404", apierrors.NewNotFound(gr, "a"), false, Unexpected},
		{"409", apierrors.NewConflict(gr, "a", errors.New("changed")), false, Conflict},
		{"exists", apierrors.NewAlreadyExists(gr, "a"), true, Conflict},
		{"failed test of a patch", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), false, Conflict},
		{"invalid object", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), true, Unexpected},
		{"refused", sent(syscall.ECONNREFUSED), false, Unconnected},
		{"nobody accepts", sent(&net.OpError{Op: "dial", Err: context.DeadlineExceeded}), false, Unconnected},
		{"nobody shakes hands", sent(errors.New("net/http: TLS handshake timeout")), false, Unconnected},
		{"reset", sent(syscall.ECONNRESET), false, Broken},
		{"end of file", sent(io.EOF), false, Broken},
		{"timed out", sent(context.DeadlineExceeded), false, Broken},
		{"lost", sent(errors.New("http2: client connection lost")), false, Broken},
		{"going away", sent(errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1")), false, Broken},
		{"unknown", sent(errors.New("tls: bad certificate")), false, Unexpected},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Classify(tt.err, tt.creation); got != tt.want {
				t.Errorf("Classify(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}
