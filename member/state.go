package member

import (
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// target is the report that a resource should have.
type target struct {
	resource Resource
	known    bool // false: no CRD has been seen for it yet
	absent   bool // its CRD is gone: there should be no report

	// Of custom resources: the CRD that was last seen.
	uid     types.UID
	version int64 // its resourceVersion
}

// state is what this server knows of one resource. Its methods decide and have no
// clock, lock or I/O.
//
// Invariants:
//  1. revision > 0 if and only if reported is not empty.
//  2. At etcd revision `revision` the StorageVersion held the report of the current
//     registration with exactly the encoding `reported`, and nothing known later
//     contradicts it.
//  3. revision never goes backward while reported stays the same.
type state struct {
	builtin bool
	target  target
	seq     uint64 // raised with every change of target
	done    uint64 // the seq of the target that was last reported

	reported agree.Encoding
	revision int64
	// checked: after this report a quorum read of the CRD named its encoding.
	checked bool
	// lostAt is the latest revision at which this server's report was known to be missing.
	lostAt int64
	// heard is the encoding in which the report stood at the latest revision heard of, heardAt.
	heard   agree.Encoding
	heardAt int64
	// past are the encodings that this server has reported before `reported`.
	past sets.Set[agree.Encoding]
	// opened is the encoding that was open last.
	opened agree.Encoding

	// seen is the StorageVersion as the watch showed it last, and tried is the revision of the StorageVersion on which
	// the last report was made.
	seen  *v1alpha1.StorageVersion
	tried int64

	// verify: the CRD has to be read, for a store asks to write an encoding never heard of.
	verify   bool
	verified bool // it was read for that reason since the last change

	inflight  bool
	ticket    uint64 // of the last claim
	failures  int
	notBefore time.Time
	lastErr   error

	changed chan struct{} // closed at every change that may matter to a waiter
}

func newState(builtin bool) *state {
	return &state{builtin: builtin, past: sets.New[agree.Encoding](), changed: make(chan struct{})}
}

func (s *state) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// aim changes the target.
func (s *state) aim(t target) {
	s.target = t
	s.seq++
	s.verified = false
	s.notBefore = time.Time{}
	s.notify()
}

// open says whether the permission to write `reported` may be handed out.
func (s *state) open() bool {
	return s.revision > 0 && (s.builtin || s.checked) && !s.target.absent
}

// pending says whether there is something to do.
func (s *state) pending() bool {
	switch {
	case s.verify, s.target.absent:
		return true
	case !s.target.known:
		return false
	default:
		return !s.open() || s.done != s.seq || s.reported != s.target.resource.Encoding
	}
}

// moving reports whether this server is about to report a resource in an encoding other than the one that was open
// last: any other encoding of a custom resource, another key of a built-in one.
func (s *state) moving() bool {
	wanted := s.target.resource.Encoding
	return s.opened != "" && s.target.known && !s.target.absent && (s.reported != wanted || !s.open()) &&
		(!s.builtin || s.opened != wanted)
}

// newer returns the StorageVersion that the watch has shown, if it is newer than the one on which the last report was
// made and this server's report in it has to change.
func (s *state) newer(self agree.ServerID) *v1alpha1.StorageVersion {
	if s.seen == nil || s.builtin || !s.target.known || s.target.absent {
		return nil
	}
	revision, err := revisionOf(s.seen)
	if err != nil || revision <= s.tried || revision < s.revision || storageversion.MadeFor(s.seen) != s.target.uid {
		return nil
	}
	own, ok := agree.Of(storageversion.Reports(s.seen), self)
	if !ok || own.Encoding == s.target.resource.Encoding {
		return nil
	}
	s.tried = revision
	return s.seen
}

// close withdraws the permission: the report is gone, or what it says is not known.
func (s *state) close() {
	if s.reported != "" {
		s.past.Insert(s.reported)
	}
	s.reported, s.revision, s.checked = "", 0, false
	s.notify()
}

// begin is called after close for a new registration, or after etcd was restored. Reports of an earlier registration
// say nothing about this one; if etcd restarted with lower revisions, they would even keep its reports from standing.
func (s *state) begin() { s.lostAt, s.heard, s.heardAt = 0, "", 0 }

// restored reports whether etcd was restored from a backup after this server's report was made: the report has a
// higher revision than the StorageVersion at mod, which a transaction at etcd revision at found, and that transaction
// sees everything that was written until then.
func (s *state) restored(at, mod int64) bool {
	return 0 < mod && mod < s.revision && s.revision <= at
}

// stands records that the report with this encoding was in the StorageVersion at
// revision. It returns false if the report is known to have been lost since, or to say
// something else.
func (s *state) stands(enc agree.Encoding, revision int64) bool {
	if revision <= s.lostAt {
		return false
	}
	if revision < s.heardAt && s.heard != enc {
		return false
	}
	if s.reported != enc {
		if s.reported != "" {
			s.past.Insert(s.reported)
		}
		s.reported, s.revision, s.checked, s.verified = enc, 0, false, false
	}
	s.revision = max(s.revision, revision)
	s.notify()
	return true
}

// learn takes in which reports stood at an etcd revision, 0 if it is not known. It
// returns true if that withdrew the permission.
func (s *state) learn(self agree.ServerID, revision int64, reports []agree.Report) bool {
	own, stands := agree.Of(reports, self)
	if stands && revision > s.heardAt {
		// It may be the report that a former attempt sent, whose answer never came.
		s.heard, s.heardAt = own.Encoding, revision
	}
	if s.revision == 0 {
		if !stands {
			s.lostAt = max(s.lostAt, revision)
		}
		return false
	}
	if revision > 0 && revision < s.revision {
		return false // older than the known revision
	}
	switch agree.Judge(reports, self, s.reported) {
	case agree.Proceed:
		s.revision = max(s.revision, revision)
		return false
	case agree.Lost:
		s.lostAt = max(s.lostAt, revision)
		// With the CRD go all reports of it (see retire), maybe before its event comes.
		s.verify = s.verify || !s.builtin && len(reports) == 0
	}
	s.close()
	return true
}

// answer says what a store may do that wants to write.
type answer int

const (
	granted answer = iota
	superseded
	wait
	refused
)

// permit answers a store that writes enc. ask is true if the CRD should be read because
// the store may know more than the last CRD event said: the CR handler and the CRD
// events come in either order.
func (s *state) permit(enc agree.Encoding) (a answer, ask bool) {
	switch {
	case s.open() && s.reported == enc:
		return granted, false
	case s.target.absent:
		return refused, false
	case s.builtin:
		return s.permitBuiltin(enc), false
	case s.target.known && enc.Plain() == s.target.resource.Encoding.Plain() && enc != s.target.resource.Encoding:
		return superseded, false // encrypted with another key than is wanted now
	case !s.target.known:
		return wait, !s.verified
	case s.revision == 0, s.reported == enc, s.target.resource.Encoding == enc:
		return wait, false
	case s.past.Has(enc):
		return superseded, !s.verified
	case s.verified && s.open():
		// The CRD was read since: the store was built before it last changed.
		return superseded, false
	default:
		return wait, !s.verified
	}
}

// permitBuiltin answers for a built-in resource that is not open in enc. Only the key can change while the server
// lives: an object that was encrypted with another key has to be encrypted again, and an object with the new key waits
// for its report.
func (s *state) permitBuiltin(enc agree.Encoding) answer {
	wanted := s.target.resource.Encoding
	switch {
	case s.opened == "" || enc.Plain() != wanted.Plain():
		return refused
	case enc != wanted:
		return superseded
	case s.moving():
		return wait
	default:
		return refused
	}
}

// moved answers a store whose transaction failed on these reports, after they were learned.
func (s *state) moved(self agree.ServerID, enc agree.Encoding, revision int64, reports []agree.Report) answer {
	if revision > 0 && revision < s.revision {
		return wait // a later revision is known: ask for it
	}
	switch agree.Judge(reports, self, enc) {
	case agree.Lost:
		return refused
	case agree.Superseded:
		if !s.target.known || s.target.resource.Encoding != enc {
			return superseded
		}
	}
	return wait
}
