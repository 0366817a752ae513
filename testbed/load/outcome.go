package load

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Outcome is the result of one attempt to write, as far as its client can tell.
type Outcome string

const (
	Acknowledged Outcome = "acknowledged"
	// Unavailable is a 503 with Retry-After: nothing was written, ask again.
	Unavailable Outcome = "503 with Retry-After"
	// Unconnected is a connection that could not be made: nothing was sent.
	Unconnected Outcome = "no connection"
	// Broken is a broken connection, or a request without an answer in time: it may be written or not, now or later.
	Broken Outcome = "broken connection"
	// Conflict says that the object is not as the client assumed.
	Conflict Outcome = "conflict"
	// Unexpected is any other answer. It may or may not be written.
	Unexpected Outcome = "unexpected answer"
)

// Unwritten reports whether the attempt has not been written and never will be.
func (o Outcome) Unwritten() bool { return o == Unavailable || o == Unconnected || o == Conflict }

// Classify returns the meaning of the error of a creation, or else of a JSON patch. A conflict is an object that
// exists already, has changed, or fails the patch's test (422).
func Classify(err error, creation bool) Outcome {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return Acknowledged
	case errors.As(err, &status):
		return classifyStatus(err, creation)
	case isUnconnected(err):
		return Unconnected
	case isBroken(err):
		return Broken
	}
	return Unexpected
}

func classifyStatus(err error, creation bool) Outcome {
	_, delayed := apierrors.SuggestsClientDelay(err)
	var header Delayed
	switch {
	case apierrors.IsServiceUnavailable(err) && (delayed || errors.As(err, &header)):
		return Unavailable
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsInvalid(err) && !creation:
		return Conflict
	}
	return Unexpected
}

// EtcdLate says whether a server's etcd did not answer in time, for which servers send a 500: the write may be made or
// not.
func EtcdLate(err error) bool {
	return err != nil && strings.Contains(err.Error(), "etcdserver: request timed out")
}

// brokenTexts are errors of net/http's HTTP/2 transport that have no type.
var brokenTexts = []string{
	"http2: client connection lost",
	"http2: client conn could not be established",
	"http2: client connection force closed",
	"server sent GOAWAY and closed the connection",
	"use of closed network connection",
	"stream error:",
	"unexpected EOF",
	"server closed idle connection",
}

func isUnconnected(err error) bool {
	var operation *net.OpError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &operation) && operation.Op == "dial" ||
		strings.Contains(err.Error(), "TLS handshake timeout")
}

func isBroken(err error) bool {
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ETIMEDOUT):
		return true
	case errors.As(err, &timeout) && timeout.Timeout():
		return true
	}
	return slices.ContainsFunc(brokenTexts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// Delayed is the error of an answer with a Retry-After header. The client library reports the header only if the body
// mentions it as well.
type Delayed struct{ Err error }

func (e Delayed) Error() string { return e.Err.Error() }

// Unwrap returns the client library's error.
func (e Delayed) Unwrap() error { return e.Err }
