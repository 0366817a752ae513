package evolve

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// Action is one write, or a wait. Actions are done in the order in which Decide returns them.
// After one that failed only those follow that do not depend on it, see Dependent; after a
// conflict, none.
type Action interface {
	fmt.Stringer
	action()
}

type (
	// WriteState writes the StorageState, in one update with the resourceVersion that was
	// read; it creates the object if none was observed.
	WriteState struct {
		State State
		// Beat says that nothing but the heartbeat differs.
		Beat bool
	}
	// DeleteState deletes the StorageState as it was observed.
	DeleteState struct{ Why string }
	// CreateMigration creates a migration.
	CreateMigration struct {
		Name    string
		Target  Target
		Attempt int
		// Lasting is how many attempts in a row have failed for a reason that does not pass by itself.
		Lasting int
		// Version is one in which the resource is served.
		Version string
		// After names the failed migration that it follows, whose limits it takes over; empty if there is none.
		After string
	}
	// AdoptMigration stamps a Target, and the uid of the StorageState, on a user's migration, if it
	// is as observed.
	AdoptMigration struct {
		Name   string
		Target Target
		State  string
	}
	// DeleteMigration deletes a migration that the trigger made.
	DeleteMigration struct{ Name, Why string }
	// ResetMigration makes a migration that the trigger made begin anew, without a Target and, since
	// a user has paused or limited it, as that user's.
	ResetMigration struct{ Name, Why string }
	// EndMigration sets a migration Failed, if it is as observed.
	EndMigration struct {
		Name   string
		Reason Reason
		Why    string
	}
	// TellWaiting writes into a migration's condition why it has not begun. Begins says that
	// the condition was not there before.
	TellWaiting struct {
		Name, Why string
		Begins    bool
	}
	// Prune sets a CRD's status.storedVersions to the Target's version, with the CRD's
	// resourceVersion, if the CRD stores that version and the StorageVersion, read after the
	// CRD, still has Target.
	Prune struct {
		CRD    string
		Target Target
	}
	// Keep adds encodings to a CRD's status.storedVersions, with the CRD's resourceVersion.
	Keep struct {
		CRD    string
		Stored []agree.Encoding
	}
	// Wait asks for another look after a time, even if nothing changes.
	Wait struct {
		For time.Duration
		Why string
		// Starting says that it ends early when no server is starting any more.
		Starting bool
	}
)

// Reason is why a migration is ended.
type Reason string

const (
	// AgreementLost: the servers stopped agreeing on an encoding.
	AgreementLost Reason = "AgreementLost"
	// StorageVersionChanged: the agreement is another than the migration's.
	StorageVersionChanged Reason = "StorageVersionChanged"
	// BegunElsewhere: another migrator, such as kube-storage-version-migrator, has begun it.
	BegunElsewhere Reason = "BegunElsewhere"
	// Unproven: it said that it had succeeded, and objects are stored in other encodings.
	Unproven Reason = "NotProven"
	// ResourceNotFound: no server knows the resource.
	ResourceNotFound Reason = "ResourceNotFound"
	// NotManaged: the resource is served, but nobody reports how it is stored.
	NotManaged Reason = "NotManaged"
	// VersionNotServed: the migration names a version in which no server serves the resource.
	VersionNotServed Reason = "VersionNotServed"
)

func (WriteState) action()      {}
func (DeleteState) action()     {}
func (CreateMigration) action() {}
func (AdoptMigration) action()  {}
func (DeleteMigration) action() {}
func (ResetMigration) action()  {}
func (EndMigration) action()    {}
func (TellWaiting) action()     {}
func (Prune) action()           {}
func (Keep) action()            {}
func (Wait) action()            {}

func (a WriteState) String() string {
	if a.Beat {
		return "heartbeat"
	}
	return "write state " + a.State.String()
}

func (a DeleteState) String() string { return "delete state: " + a.Why }

func (a CreateMigration) String() string {
	like := ""
	if a.After != "" {
		like = ", with the limits of " + a.After
	}
	return fmt.Sprintf("create migration %s to %s, attempt %d%s", a.Name, a.Target, a.Attempt, like)
}

func (a AdoptMigration) String() string {
	return fmt.Sprintf("adopt migration %s for %s", a.Name, a.Target)
}

func (a DeleteMigration) String() string {
	return fmt.Sprintf("delete migration %s: %s", a.Name, a.Why)
}

func (a ResetMigration) String() string {
	return fmt.Sprintf("reset migration %s, which a user has paused or limited: %s", a.Name, a.Why)
}

func (a EndMigration) String() string {
	return fmt.Sprintf("fail migration %s: %s: %s", a.Name, a.Reason, a.Why)
}

func (a TellWaiting) String() string {
	return fmt.Sprintf("migration %s waits: %s", a.Name, a.Why)
}

func (a Prune) String() string {
	return fmt.Sprintf("prune storedVersions of %s to %s", a.CRD, a.Target)
}

func (a Keep) String() string {
	return fmt.Sprintf("keep %s in storedVersions of %s", agree.Join(a.Stored), a.CRD)
}

func (a Wait) String() string { return fmt.Sprintf("wait %s: %s", a.For, a.Why) }

// Starts says whether one of the actions begins a migration.
func Starts(actions []Action) bool {
	for _, a := range actions {
		switch a.(type) {
		case CreateMigration, AdoptMigration:
			return true
		}
	}
	return false
}

// Dependent says whether an action must not follow one that failed: the state is written
// before migrations are touched, and the old ones are gone before one is made or the state
// is deleted.
func Dependent(a Action) bool {
	switch a := a.(type) {
	case WriteState:
		return !a.Beat
	case DeleteState, CreateMigration:
		return true
	}
	return false
}

// maxName is how long the name of an object may be.
const maxName = 253

// MigrationName names the attempt-th migration made for a target. It depends on nothing else, so that two triggers
// that both believe they lead, and see the same migrations, cannot make it twice.
func MigrationName(gr schema.GroupResource, t Target, attempt int) string {
	uid, _, _ := strings.Cut(t.UID, "-")
	suffix := fmt.Sprintf("-%s-%d-%d", uid, t.Epoch, attempt)
	name := strings.TrimSuffix(gr.String(), ".")
	if len(name)+len(suffix) > maxName {
		hash := fnv.New32a()
		hash.Write([]byte(name))
		suffix = fmt.Sprintf("-%08x%s", hash.Sum32(), suffix)
		name = strings.TrimRight(name[:maxName-len(suffix)], ".-")
	}
	return name + suffix
}
