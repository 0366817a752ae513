package load

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Ack is a write that a server said had succeeded.
type Ack struct {
	// Write is its ID, which begins with the server's name.
	Write           string
	ResourceVersion string
	Server          string
	Started, At     time.Time
}

// Failure is an attempt to write that ended in an error.
type Failure struct {
	Write, Server string
	Outcome       Outcome
	Err           error
	// Untrue is set for an error about the object (a conflict, not found, exists already) that a later read of the
	// object contradicts. It says how, for example "the object is still at 17".
	Untrue      string
	Started, At time.Time
}

// String prints the failure in one line.
func (f Failure) String() string {
	line := fmt.Sprintf("%s at %s after %v: %v", f.Write, f.Started.Format("15:04:05.000"), f.At.Sub(f.Started).Round(time.Millisecond), f.Err)
	if f.Untrue != "" {
		line += " (untrue: " + f.Untrue + ")"
	}
	return line
}

// Retriable reports whether the server asked to try again later.
func (f Failure) Retriable() bool {
	return apierrors.IsServiceUnavailable(f.Err) || apierrors.IsTooManyRequests(f.Err)
}

// Broken reports whether no answer came: the connection broke, was refused or fell silent.
func (f Failure) Broken() bool {
	outcome := Classify(f.Err, false)
	// The HTTP/2 client's errors have no types of their own.
	return outcome == Unconnected || outcome == Broken || strings.Contains(f.Err.Error(), "http2: ")
}

// Unknown reports whether the server could not tell if the write took effect, because its etcd did not answer in time.
func (f Failure) Unknown() bool {
	return apierrors.IsInternalError(f.Err) || apierrors.IsTimeout(f.Err) || apierrors.IsServerTimeout(f.Err) ||
		strings.Contains(f.Err.Error(), "etcdserver: ")
}

// Report is the result of a load.
type Report struct {
	Acks     []Ack
	Failures []Failure
	// Conflicts counts the true conflicts, which say nothing about the servers.
	Conflicts int
	// LongestWrite is the longest time that a write took which succeeded.
	LongestWrite time.Duration
}

// Across counts the writes to the server that were under way at the time.
func (r Report) Across(server string, at time.Time) (n int) {
	count := func(of string, started, ended time.Time) {
		if of == server && started.Before(at) && ended.After(at) {
			n++
		}
	}
	for _, a := range r.Acks {
		count(a.Server, a.Started, a.At)
	}
	for _, f := range r.Failures {
		count(f.Server, f.Started, f.At)
	}
	return n
}

// BrokenTo excuses broken connections to servers that a test has stopped, killed or paused.
func BrokenTo(servers ...string) func(Failure) bool {
	return func(f Failure) bool { return f.Broken() && slices.Contains(servers, f.Server) }
}

// Unexpected returns the failures that users would complain about: all except those that say "try again", and those
// that are excused (nil: none).
func (r Report) Unexpected(excused func(Failure) bool) []Failure {
	return slices.DeleteFunc(slices.Clone(r.Failures), func(f Failure) bool {
		return f.Untrue == "" && (f.Retriable() || excused != nil && excused(f))
	})
}
