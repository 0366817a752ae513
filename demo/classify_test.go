package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"

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
		want     outcome
	}{
		{"no error", nil, false, acknowledged},
		{"503 with Retry-After", unavailableError(1), false, unavailable},
		{"503 without", unavailableError(0), false, unexpected},
		{"429", apierrors.NewTooManyRequests("later", 1), false, unexpected},
		{"500", apierrors.NewInternalError(errors.New("etcdserver: request timed out")), false, unexpected},
		{"404", apierrors.NewNotFound(gr, "a"), false, unexpected},
		{"409", apierrors.NewConflict(gr, "a", errors.New("changed")), false, conflict},
		{"exists", apierrors.NewAlreadyExists(gr, "a"), true, conflict},
		{"failed test of a patch", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), false, conflict},
		{"invalid object", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), true, unexpected},
		{"refused", sent(syscall.ECONNREFUSED), false, unconnected},
		{"nobody accepts", sent(&net.OpError{Op: "dial", Err: context.DeadlineExceeded}), false, unconnected},
		{"nobody shakes hands", sent(errors.New("net/http: TLS handshake timeout")), false, unconnected},
		{"reset", sent(syscall.ECONNRESET), false, broken},
		{"end of file", sent(io.EOF), false, broken},
		{"timed out", sent(context.DeadlineExceeded), false, broken},
		{"lost", sent(errors.New("http2: client connection lost")), false, broken},
		{"going away", sent(errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1")), false, broken},
		{"unknown", sent(errors.New("tls: bad certificate")), false, unexpected},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := classify(tt.err, tt.creation); got != tt.want {
				t.Errorf("classify(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

func at(seconds int) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds) * time.Second)
}

func TestExcuse(t *testing.T) {
	faults := []fault{
		{server: "a", kind: killed, from: at(10), to: at(20)},
		{server: "b", kind: rolled, from: at(30), to: at(40)},
		{server: "c", kind: paused, from: at(50)},
	}
	for _, tt := range []struct {
		server   string
		outcome  outcome
		from, to int
		excused  bool
	}{
		{"a", unavailable, 1, 2, true}, // retriable wherever it comes from
		{"a", broken, 12, 13, true},
		{"a", broken, 5, 10, true}, // under way when the server died
		{"a", broken, 1, 9, false},
		{"a", broken, 21, 22, false},
		{"b", broken, 12, 13, false}, // another server was killed
		{"b", unconnected, 35, 36, true},
		{"b", broken, 35, 36, false}, // a graceful stop breaks no connection
		{"b", unconnected, 41, 42, false},
		{"c", broken, 90, 95, true},
		{"c", unexpected, 90, 95, false},
		{"a", conflict, 12, 13, false},
	} {
		t.Run(fmt.Sprintf("%s %s %d", tt.server, tt.outcome, tt.from), func(t *testing.T) {
			got := excuse(failure{server: tt.server, outcome: tt.outcome, from: at(tt.from), to: at(tt.to)}, faults)
			if (got != "") != tt.excused {
				t.Errorf("excuse = %q, want excused %v", got, tt.excused)
			}
		})
	}
}
