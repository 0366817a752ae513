// Package invariant checks the invariants of DESIGN 3.7 on a simulated cluster. A Checker receives every write, with
// facts about its writer, and looks at what is stored; it changes nothing.
package invariant

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
)

// Violation is an invariant of DESIGN 3.7 that does not hold.
type Violation struct {
	// Invariant is "I1" to "I10", or "panic" if production code panicked.
	Invariant string
	// What describes the violation.
	What string
}

// String prints "I4: ...".
func (v Violation) String() string { return v.Invariant + ": " + v.What }

// Checker checks the invariants of a world. It has the record of the past that they need.
type Checker struct {
	store *etcd.Store
	api   *registry.Storage
	// objects is where users' objects are: another store than that of the API objects in the host of an aggregated API.
	objects *etcd.Store
	// Violation is the first violation, nil if there is none; violated is called with it.
	Violation *Violation
	violated  func(Violation)
	// checked is how much of the logs of store and objects was there when Check was last called.
	checked, checkedObjects int

	// Now is the time: the world sets it.
	Now time.Duration
	// Available is for how long etcd has answered everything: the world adds to it.
	Available time.Duration
	// Outages is how often it has stopped to: the world counts them.
	Outages int
	// renewed is when, in available time, the Lease of an ID was last written.
	renewed map[agree.ServerID]renewal
	// Owner maps an ID to the server that registered it.
	Owner map[agree.ServerID]*Server
	// madeFor is the definition that a key of a custom resource belongs to: the one for
	// which the StorageVersion stood that permitted it.
	madeFor map[string]types.UID
	// erasures are the registrations of servers whose gate is off for which the
	// StorageVersions were deleted.
	erasures map[agree.ServerID]bool
	// stray are the keys that such a server wrote although it had no Lease any more:
	// nothing is promised of them until all StorageVersions are deleted once more (DESIGN 3.8).
	stray map[string]bool
	// unnoticed holds the keys that a stock server wrote while no Unknown was reported for it, and that server:
	// nothing is promised about them until Unknown is reported for it.
	unnoticed map[string]agree.ServerID
	// lingering are the stock servers that have deleted their Leases themselves.
	lingering map[*Server]lingering
	// unreported are the keys that a server wrote which reports nothing, as its gate is off or it
	// is a stock one: no census foresees what it writes.
	unreported map[string]bool
	// ended are the StorageVersions that a server has written although it knew that their
	// definition had come to its end, by uid: they permit nothing for its successor any more.
	ended map[types.UID]bool
	// committed are the clients' writes that were committed, by the data that names them.
	committed map[string]bool
	// forged says that the StorageState of widgets was edited and is not right again. lowered is the revision since
	// which the storedVersions of widgets have been too small because somebody edited them; 0 once they are restored.
	forged  bool
	lowered int64
	// loweredOf is the StorageState that knew what storedVersions named before that; "" if none.
	loweredOf types.UID
	// verdicts are the last ones.
	verdicts map[*object.Resource]*judged
	// counted are the last censuses.
	counted map[*object.Resource]*counted
	// encodings and readings are the contents of stored values, which never change.
	encodings map[*mvccpb.KeyValue]agree.Encoding
	readings  map[*v1alpha1.StorageVersion]*reading
}

// renewal is when a Lease was written.
type renewal struct {
	available time.Duration
	outages   int
}

// New returns a checker of a world in which nothing has happened.
func New(store, objects *etcd.Store, api *registry.Storage, violated func(Violation)) *Checker {
	return &Checker{
		store: store, objects: objects, api: api, violated: violated,
		renewed:    map[agree.ServerID]renewal{},
		Owner:      map[agree.ServerID]*Server{},
		madeFor:    map[string]types.UID{},
		erasures:   map[agree.ServerID]bool{},
		stray:      map[string]bool{},
		unnoticed:  map[string]agree.ServerID{},
		lingering:  map[*Server]lingering{},
		unreported: map[string]bool{},
		committed:  map[string]bool{},
		ended:      map[types.UID]bool{},
		verdicts:   map[*object.Resource]*judged{},
		counted:    map[*object.Resource]*counted{},
		encodings:  map[*mvccpb.KeyValue]agree.Encoding{},
		readings:   map[*v1alpha1.StorageVersion]*reading{},
	}
}

// Violate notes a violation, if it is the first.
func (c *Checker) Violate(invariant, format string, args ...any) {
	if c.Violation == nil {
		c.Violation = &Violation{Invariant: invariant, What: fmt.Sprintf(format, args...)}
		c.violated(*c.Violation)
	}
}

// Erased notes that all StorageVersions were deleted for a registration.
func (c *Checker) Erased(id agree.ServerID) {
	c.erasures[id] = true
	clear(c.stray)
	clear(c.unnoticed)
}

// Judge looks at one change of one key, made by r, or by an administrator if r is nil.
func (c *Checker) Judge(r *Write, e etcd.Event) {
	for _, res := range object.All {
		if strings.HasPrefix(e.Key, res.Prefix) {
			c.judgeObject(r, res, e)
			return
		}
	}
	switch {
	case strings.HasPrefix(e.Key, registry.Leases.Prefix()):
		c.judgeLease(r, e)
	case strings.HasPrefix(e.Key, registry.StorageVersions.Prefix()) && r != nil:
		c.judgeReports(r, e)
	}
}

// Check looks at the stored values if any have changed that the invariants are about, so not for Leases and
// migrations.
func (c *Checker) Check() {
	if c.Violation != nil {
		return
	}
	log := c.store.Log()
	matters := slices.ContainsFunc(log[c.checked:], func(e etcd.Event) bool {
		return !strings.HasPrefix(e.Key, registry.Leases.Prefix()) && !strings.HasPrefix(e.Key, registry.Migrations.Prefix())
	}) || c.objects != c.store && len(c.objects.Log()) > c.checkedObjects
	c.checked, c.checkedObjects = len(log), len(c.objects.Log())
	if !matters {
		return
	}
	for _, r := range object.All {
		c.checkStored(r)
	}
}
