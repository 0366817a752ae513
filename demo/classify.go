package demo

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// outcome is what became of one attempt to write, as its client can tell.
type outcome string

const (
	acknowledged outcome = "acknowledged"
	// unavailable is a 503 with Retry-After: nothing was written, ask again.
	unavailable outcome = "503 with Retry-After"
	// unconnected is a connection that could not be made: nothing was sent.
	unconnected outcome = "no connection"
	// broken is a connection that broke or a request that nobody answered in time: it may
	// or may not be written, now or later.
	broken outcome = "broken connection"
	// conflict says that the object is not as the client believes.
	conflict outcome = "conflict"
	// unexpected is any other answer. It may or may not be written.
	unexpected outcome = "unexpected answer"
)

// unwritten says that the attempt has not written and never will.
func (o outcome) unwritten() bool { return o == unavailable || o == unconnected || o == conflict }

// classify tells what the error of a creation, or else of a JSON patch, means. A conflict
// is an object that exists already, has changed, or fails the patch's test (422).
func classify(err error, creation bool) outcome {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return acknowledged
	case errors.As(err, &status):
		return classifyStatus(err, creation)
	case isUnconnected(err):
		return unconnected
	case isBroken(err):
		return broken
	}
	return unexpected
}

func classifyStatus(err error, creation bool) outcome {
	_, delayed := apierrors.SuggestsClientDelay(err)
	var header delayedError
	switch {
	case apierrors.IsServiceUnavailable(err) && (delayed || errors.As(err, &header)):
		return unavailable
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsInvalid(err) && !creation:
		return conflict
	}
	return unexpected
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

// failure is one attempt to write that was not acknowledged.
type failure struct {
	server   string
	outcome  outcome
	from, to time.Time
	text     string
}

// faultKind is the kind of a fault that the demo causes.
type faultKind string

const (
	rolled faultKind = "rolled"
	killed faultKind = "killed"
	paused faultKind = "paused"
)

// fault is a time in which the demo keeps a server from serving, until it is ready
// again. A zero end means that it lasts.
type fault struct {
	server   string
	kind     faultKind
	from, to time.Time
}

func (f fault) overlaps(from, to time.Time) bool {
	return !to.Before(f.from) && (f.to.IsZero() || !from.After(f.to))
}

// absent is the excuse of an attempt that found nobody, because the server was being
// restarted in the roll. Nothing was sent, so it is no write error: the client went on to
// the next server.
const absent = "no connection to the server being restarted"

// excuse returns why a failed attempt is as it must be, or "" if it must not have
// happened: a retriable 503, a broken connection to a killed or paused server, or absent.
func excuse(f failure, faults []fault) string {
	if f.outcome == unavailable {
		return string(unavailable)
	}
	for _, fault := range faults {
		if fault.server != f.server || !fault.overlaps(f.from, f.to) {
			continue
		}
		switch {
		case f.outcome == unconnected && fault.kind == rolled:
			return absent
		case (f.outcome == unconnected || f.outcome == broken) && fault.kind != rolled:
			return "broken connection to the " + string(fault.kind) + " server"
		}
	}
	return ""
}
