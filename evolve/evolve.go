// Package evolve decides on StorageStates and StorageVersionMigrations (KEP-2343, and KEP-2339
// "Consuming the StorageVersion API"): the content of a resource's StorageState, and when a
// migration is made, adopted, aborted or counted as a success. It is pure: an Observation in,
// Actions out, no clock, I/O or goroutine; the time is an argument.
package evolve

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// Unknown stands in a stored set for encodings that are not known, and as the current encoding for the lack of
// agreement (KEP-2343, "API design").
const Unknown = agree.Unknown

// Ref names a StorageVersion object at one epoch. Epochs of different objects cannot be
// compared. The zero Ref names nothing.
type Ref struct {
	UID   string
	Epoch int64
}

// String prints "uid/epoch".
func (r Ref) String() string { return fmt.Sprintf("%s/%d", r.UID, r.Epoch) }

// Target is the goal of a migration: the encoding that all servers agreed on, and the
// StorageVersion and epoch of that agreement. Its success counts only for that Target. The zero
// Target is none, as of a user's migration that was not adopted.
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

// StorageVersion holds the fields of a StorageVersion that decisions need.
type StorageVersion struct {
	UID     string
	History agree.History
	Reports []agree.Report
	// Common is status.commonEncodingVersion, empty without agreement.
	Common agree.Encoding
	// Silent says, for people, which servers keep the others from agreeing because they do
	// not report, and how to go on; empty where none does.
	Silent string
	// Custom says that the StorageVersion was made for a CustomResourceDefinition, which may be gone.
	Custom bool
	// Definition is the state of that definition up to which what it said to store is in History,
	// for servers that do not report: they may write it before it is observed. Empty beside others.
	Definition string
}

// Ref returns the StorageVersion and its epoch.
func (sv *StorageVersion) Ref() Ref { return Ref{UID: sv.UID, Epoch: sv.History.Epoch} }

// Agreement returns the encoding that all servers agree on, with the epoch. There is none
// unless the common encoding and the history name the same.
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

// State holds the content of a StorageState.
type State struct {
	// Of is the StorageVersion, at its epoch, that the other fields were computed from; zero
	// in an object that was just created. Its epoch never goes back for one uid.
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
	// UID is the uid of the object; empty before it is created.
	UID string
	// Custom says that the resource was once seen to be a custom resource.
	Custom bool
	// Listed has the encodings that the definition's storedVersions were seen to name while Stored holds Unknown,
	// because it is not known then that they are gone for good. It is separate from Stored, which lists what servers
	// wrote (KEP-2343 begins it with Unknown alone). Invariant: empty if Stored does not hold Unknown.
	Listed []agree.Encoding
	// Definition is the StorageVersion's at Of, or an older one.
	Definition string
	// Forged says that the fields contradict each other: somebody has edited the object.
	Forged bool
}

// Only says whether the stored set is exactly e.
func (s State) Only(e agree.Encoding) bool { return len(s.Stored) == 1 && s.Stored[0] == e }

// String prints the state without its uid and times.
func (s State) String() string {
	text := fmt.Sprintf("%s stored [%s] current %s", s.Of, agree.Join(s.Stored), s.Current)
	if len(s.Listed) > 0 {
		text += fmt.Sprintf(" listed [%s]", agree.Join(s.Listed))
	}
	return text
}

// same compares everything but the uid and the times.
func (s State) same(o State) bool {
	return s.Of == o.Of && s.Current == o.Current && s.Why == o.Why && s.Custom == o.Custom && s.Definition == o.Definition && slices.Equal(s.Stored, o.Stored) &&
		slices.Equal(s.Listed, o.Listed) && slices.Equal(s.Removable, o.Removable)
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

// Migration holds the fields of a StorageVersionMigration that decisions need.
type Migration struct {
	Name   string
	Target Target
	// State is the uid of the StorageState that there was when a user's got its Target.
	State string
	Phase Phase
	// Lasting is how many attempts in a row, this one the last of them, have failed for a reason that does not pass by
	// itself; 0 if this one has not.
	Lasting int
	// Overtaken says that the migration failed because the definition changed while it ran, Mended that the definition
	// has changed since the failure: the change may be the repair.
	Overtaken, Mended bool
	// Made says that the trigger created the migration, and not a user.
	Made bool
	// Paused says that a user has paused it, Limited that a user has set its rate or added latency.
	Paused, Limited bool
	// Attempt counts the migrations made for one Target, from 1; 0 for one that a user made.
	Attempt int
	// Version is the version in spec.resource, in which the resource is served; may be empty.
	Version string
	// Waiting is the message of the condition that says why it has not begun; may be empty.
	Waiting string
	// Created is when the object was created. Ended is when it became final or, for a failed migration, when the
	// failure was first seen, by the clock of Observation.Now.
	Created, Ended time.Time
}

// CRD holds the fields of a CustomResourceDefinition that decisions need.
type CRD struct {
	Name string
	// Storage is the version that the spec says to store.
	Storage agree.Encoding
	// Versions are the versions of the spec, and StoredVersions is status.storedVersions, as encodings.
	Versions, StoredVersions []agree.Encoding
	// Held says that the cut-over is on hold: nothing is pruned.
	Held bool
	// Deleted says that it is being deleted, and all objects with it: no migration is made.
	Deleted bool
}

// Census is the result of a count of all stored values that began when Of was agreed on. While that agreement lasts no
// server writes another encoding, so that an encoding which the count did not find is not stored.
type Census struct {
	Of Target
	// Found lists the encodings of values other than Of's, sorted: Unknown for values that cannot be read, or are not
	// encrypted with Of's key.
	Found []agree.Encoding
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

// Observation is everything on which a decision about one resource depends. The StorageState was read first, then the
// StorageVersion, then everything else (section 3.5), so that StorageVersion is at least as new as the one from which
// State was computed.
type Observation struct {
	Resource schema.GroupResource
	Now      time.Time
	// State and StorageVersion are nil where the object does not exist.
	State          *State
	StorageVersion *StorageVersion
	// Migrations are the migrations of this resource. An outdated list is safe.
	Migrations []Migration
	// CRD is nil where there is none: then the resource is no custom resource (any more).
	CRD *CRD
	// Existence needs to be looked up only without a StorageVersion, or where NotServed.
	Existence Existence
	// Census is nil where the stored values were not counted.
	Census *Census
	// Starting is a hint: migrations that would begin now wait for these servers, for at
	// most one Lease duration.
	Starting []Starting
	// Settling is how much longer no migration begins, where Silenced names a silence that is over.
	Settling time.Duration
	Policy   Policy
}

// Policy restricts the trigger, by a user's choice or because less is known about servers that do not report. The zero
// Policy restricts nothing.
type Policy struct {
	// Initial is the stored set of a new StorageState, beside the encodings reported; nil for
	// Unknown.
	Initial []agree.Encoding
	// Manual explains why no migration is made unless somebody asks for one, and why automatic ones that exist are ended;
	// empty if migrations are made automatically.
	Manual string
	// TakeOver has migrations ended that another migrator has begun.
	TakeOver bool
	// KeepStored says why a CRD's storedVersions are not pruned, PruneIn for how long not.
	KeepStored string
	PruneIn    time.Duration
}
