// Package evolve decides how the stored encodings of a resource come to be one: what its
// StorageState says, and when a migration is made, adopted, aborted or counted
// (KEP-2343, and KEP-2339 "Consuming the StorageVersion API"). It is pure: an
// Observation in, Actions out, no clock, I/O or goroutine; the time is an argument.
package evolve

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// Unknown stands in a stored set for encodings that nobody can name, and as the current
// encoding for the lack of agreement (KEP-2343, "API design").
const Unknown = agree.Unknown

// Ref names a StorageVersion object at one epoch. Epochs of different objects cannot be
// compared. The zero Ref names nothing.
type Ref struct {
	UID   string
	Epoch int64
}

// String prints "uid/epoch".
func (r Ref) String() string { return fmt.Sprintf("%s/%d", r.UID, r.Epoch) }

// Target is what a migration counts for: the encoding that all servers agreed on, and
// the StorageVersion and epoch of that agreement. The zero Target is none: a migration
// without a Target never counts.
type Target struct {
	Ref
	Encoding agree.Encoding
}

// String prints "encoding@uid/epoch".
func (t Target) String() string {
	if t == (Target{}) {
		return "none"
	}
	return fmt.Sprintf("%s@%s", t.Encoding, t.Ref)
}

// StorageVersion is what is read of the resource's StorageVersion.
type StorageVersion struct {
	UID     string
	History agree.History
	Reports []agree.Report
	// Common is status.commonEncodingVersion, empty without agreement.
	Common agree.Encoding
	// Silent says, for people, which servers keep the others from agreeing because they do
	// not report, and how to go on; empty where none does.
	Silent string
}

// Ref returns the StorageVersion and its epoch.
func (sv *StorageVersion) Ref() Ref { return Ref{UID: sv.UID, Epoch: sv.History.Epoch} }

// Agreement returns what all servers agree on, and at which epoch. The object must say
// so twice, in its common encoding and in its history.
func (sv *StorageVersion) Agreement() (Target, bool) {
	if sv.Common == "" || !slices.Equal(sv.History.Reported(), []agree.Encoding{sv.Common}) {
		return Target{}, false
	}
	return Target{Ref: sv.Ref(), Encoding: sv.Common}, true
}

// disagreement says, for people, why there is no agreement.
func (sv *StorageVersion) disagreement() string {
	switch reported := sv.History.Reported(); {
	case sv.Silent != "":
		return sv.Silent
	case len(reported) == 0:
		return "no server reports the resource"
	case len(reported) == 1:
		return "servers do not agree yet on " + string(reported[0])
	default:
		return "servers report different encodings: " + agree.Join(reported)
	}
}

// State is what a StorageState says.
type State struct {
	// Of is what the rest is computed for; zero in an object that was created and not
	// written since. Its epoch never goes back for one uid.
	Of Ref
	// Stored is the stored set, in the order in which encodings entered it.
	// Invariant: it holds Unknown, or every encoding reported at Of.
	Stored []agree.Encoding
	// Removable are the keys that servers have encrypted with and that no stored object
	// needs, sorted; see removable.
	Removable []string
	// Current is the encoding agreed on, or Unknown.
	Current agree.Encoding
	// Why says, for people, why Current is Unknown; empty where it is not.
	Why string
	// Heartbeat is when the trigger last looked.
	Heartbeat time.Time
	// Custom says that the resource was seen to be a custom resource.
	Custom bool
	// Forged says that what was observed contradicts itself: somebody has edited it.
	Forged bool
}

// Only says whether the stored set is exactly e.
func (s State) Only(e agree.Encoding) bool { return len(s.Stored) == 1 && s.Stored[0] == e }

// String prints the state without its heartbeat.
func (s State) String() string {
	return fmt.Sprintf("%s stored [%s] current %s", s.Of, agree.Join(s.Stored), s.Current)
}

// same compares everything but the heartbeat.
func (s State) same(o State) bool {
	return s.Of == o.Of && s.Current == o.Current && s.Why == o.Why && s.Custom == o.Custom && slices.Equal(s.Stored, o.Stored) && slices.Equal(s.Removable, o.Removable)
}

// Phase is how far a migration is.
type Phase int

const (
	// Pending means that no server has claimed the migration.
	Pending Phase = iota
	// Running means that it is claimed, or that its Running condition is true.
	Running
	// Succeeded and Failed are final.
	Succeeded
	Failed
)

// String names the phase.
func (p Phase) String() string {
	return [...]string{"Pending", "Running", "Succeeded", "Failed"}[p]
}

// Final says whether the migration has ended.
func (p Phase) Final() bool { return p == Succeeded || p == Failed }

// Migration is what is read of a StorageVersionMigration.
type Migration struct {
	Name   string
	Target Target
	Phase  Phase
	// Made says that the trigger made it, and not a user.
	Made bool
	// Attempt counts the migrations made for one Target, from 1; 0 for a user's.
	Attempt int
	// Waiting is what it says that it waits for, if it does.
	Waiting string
	// Created is when the object was created, Ended when it became final.
	Created, Ended time.Time
}

// CRD is what is read of a custom resource's definition.
type CRD struct {
	Name string
	// Storage is the version that the spec says to store.
	Storage agree.Encoding
	// Versions are those of the spec, and StoredVersions is status.storedVersions, as encodings.
	Versions, StoredVersions []agree.Encoding
}

// Existence is whether discovery knows a resource.
type Existence int

const (
	// NotLooked means that nobody asked, or that the answer was an error: it proves nothing.
	NotLooked Existence = iota
	// Served means that a server serves the resource.
	Served
	// Missing means that no server serves it.
	Missing
)

// Starting is a server that has an identity Lease but has not reported everything yet.
type Starting struct {
	Server agree.ServerID
	// Since is when its Lease was created, Lease how long that one lasts unrenewed.
	Since time.Time
	Lease time.Duration
}

// Observation is all that a decision about one resource is made from. The StorageState
// was read first, then the StorageVersion, then everything else (section 3.5): so
// StorageVersion is at least as new as what State was computed from.
type Observation struct {
	Resource schema.GroupResource
	Now      time.Time
	// State and StorageVersion are nil where the object does not exist.
	State          *State
	StorageVersion *StorageVersion
	// Migrations are those of this resource. A view that lags is safe.
	Migrations []Migration
	// CRD is nil where there is none: then the resource is no custom resource (any more).
	CRD *CRD
	// Existence needs to be looked up only without a StorageVersion.
	Existence Existence
	// Starting is a hint: migrations that would begin now wait for these servers, for at
	// most one Lease duration.
	Starting []Starting
}
