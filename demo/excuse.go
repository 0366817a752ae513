package demo

import (
	"time"

	"github.com/concord-dev/concord/testbed/load"
)

// faultKind is the kind of a fault that the demo causes.
type faultKind string

const (
	rolled faultKind = "rolled"
	killed faultKind = "killed"
	paused faultKind = "paused"
)

// fault is a time in which the demo keeps a server from serving, until it is ready again. A zero end means that the
// fault has not ended.
type fault struct {
	server   string
	kind     faultKind
	from, to time.Time
}

func (f fault) overlaps(from, to time.Time) bool {
	return !to.Before(f.from) && (f.to.IsZero() || !from.After(f.to))
}

// absent is the excuse of an attempt that found no server, because the server was being restarted in the roll. Nothing
// was sent, so it is not a write error: the client went on to the next server.
const absent = "no connection to the server being restarted"

// excuse returns why a failed attempt was to be expected, or "" if it must not have happened. It excuses a retriable
// 503, a broken connection to a killed or paused server, and absent.
func excuse(f load.Failure, faults []fault) string {
	if f.Outcome == load.Unavailable {
		return string(load.Unavailable)
	}
	for _, fault := range faults {
		if fault.server != f.Server || !fault.overlaps(f.Started, f.At) {
			continue
		}
		switch {
		case f.Outcome == load.Unconnected && fault.kind == rolled:
			return absent
		case (f.Outcome == load.Unconnected || f.Outcome == load.Broken) && fault.kind != rolled:
			return "broken connection to the " + string(fault.kind) + " server"
		}
	}
	return ""
}
