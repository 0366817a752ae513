// Package ledger follows an etcd by a watch, in the order of its revisions, and asks no API server. It records in
// which encoding each object is stored, and what stored objects say about others: which server reports what
// (StorageVersions), which servers there are (identity Leases), what may be stored (StorageStates,
// CustomResourceDefinitions) and what is migrated.
//
// Ledger is pure: it takes events, and answers questions about them. Its users decide which answers are right. Watch
// feeds it from etcd.
package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Event is one change of one key. A nil Value is a delete.
type Event struct {
	Revision int64
	Key      string
	Value    []byte
	// At is when the watch delivered the event.
	At time.Time
}

// Ledger is the record of all that was written to an etcd since its first revision; New makes an empty one.
// Invariant: events are applied in the order of their revisions, none left out.
type Ledger struct {
	// Revision is the revision of the last event.
	Revision  int64
	Resources map[schema.GroupResource]*Resource
	// Servers are the servers that have had an identity Lease.
	Servers map[agree.ServerID]*Server
	// Migrations are all StorageVersionMigrations, including deleted ones.
	Migrations map[types.UID]*Migration

	prefix  string
	open    Open
	objects map[string]*Object
}

// Open decrypts an encrypted value, and returns what it was encrypted with.
type Open func(key string, value []byte) (plain []byte, seal agree.Seal, err error)

// Resource holds what is known about one resource at the ledger's revision.
type Resource struct {
	// Version, State and CRD are nil where there is none.
	Version *Version
	State   *migrationv1alpha1.StorageState
	CRD     *apiextensionsv1.CustomResourceDefinition
	// Joined has, by server, the revision at which its report first appeared.
	Joined map[agree.ServerID]int64
	// Counts are how many objects are stored in each encoding.
	Counts map[agree.Encoding]int
	// last has, for each encoding in which no object is stored any more, the last revision at which one was.
	last map[agree.Encoding]int64
}

// Version is a StorageVersion. It is never changed: a new one takes its place.
type Version struct {
	evolve.Ref
	Revision int64
	Reports  []agree.Report
	Common   agree.Encoding // "" without agreement
}

// Server is an API server as its identity Lease describes it.
type Server struct {
	Release string
	// Silent says that the server does not report.
	Silent bool
	// Gone is the revision at which the Lease was deleted, 0 while it exists.
	Gone int64
}

// Migration is a StorageVersionMigration.
type Migration struct {
	Resource schema.GroupResource
	Phase    evolve.Phase
	Reason   string
	Progress migrationv1alpha1.MigrationProgress
	Order    int // later migrations have a higher number
	// Running is when the watch first showed the migration as running.
	Running time.Time
}

// Object is how an object is stored.
type Object struct {
	Resource schema.GroupResource
	Encoding agree.Encoding
}

// Change is the change that an event makes.
type Change struct {
	Event // its Value is decrypted
	// Was and Is are how the object was stored before the event and after it, nil if there was none.
	Was, Is *Object
	// About is the resource that the object describes, if it is a StorageVersion, a StorageState or a
	// CustomResourceDefinition.
	About schema.GroupResource
	// Registered is the server whose identity Lease is created by this event; Apply sets it.
	Registered agree.ServerID

	apply func(*Ledger)
}

// New returns the ledger of an empty etcd, in which objects will be stored under prefix ("/registry").
func New(prefix string) *Ledger {
	return &Ledger{
		Resources:  map[schema.GroupResource]*Resource{},
		Servers:    map[agree.ServerID]*Server{},
		Migrations: map[types.UID]*Migration{},
		prefix:     strings.TrimSuffix(prefix, "/") + "/",
		objects:    map[string]*Object{},
	}
}

// Open sets the function that decrypts encrypted values.
func (l *Ledger) Open(open Open) { l.open = open }

// Of returns the record of a resource, which is empty if nothing is known of it.
func (l *Ledger) Of(gr schema.GroupResource) *Resource {
	r := l.Resources[gr]
	if r == nil {
		r = &Resource{Joined: map[agree.ServerID]int64{}, Counts: map[agree.Encoding]int{}, last: map[agree.Encoding]int64{}}
		l.Resources[gr] = r
	}
	return r
}

// ErrNoObject means that a key or value does not belong to an object.
var ErrNoObject = errors.New("no object")

// Read returns the change that an event will make, nil if the ledger does not record it. After an error the event must
// not be applied.
func (l *Ledger) Read(e Event) (*Change, error) {
	l.Revision = max(l.Revision, e.Revision)
	path, ok := strings.CutPrefix(e.Key, l.prefix)
	if !ok || migratestore.Unowned(path) {
		return nil, nil
	}
	c := &Change{Event: e, Was: l.objects[e.Key], apply: func(*Ledger) {}}
	var seal agree.Seal
	var err error
	if e.Value != nil && l.open != nil {
		if c.Value, seal, err = l.open(e.Key, e.Value); err != nil {
			return nil, fmt.Errorf("the value cannot be opened: %w", err)
		}
	}
	if err := c.learn(path); err != nil || c.Value == nil {
		return c, err
	}
	encoding, _, ok := migratestore.Envelope(c.Value)
	if !ok {
		return nil, fmt.Errorf("%w: the value has no readable envelope", ErrNoObject)
	}
	gr, ok := locate(path, encoding)
	if !ok {
		return nil, fmt.Errorf("%w: the key is not one's, but its value is in %s", ErrNoObject, encoding)
	}
	c.Is = &Object{Resource: gr, Encoding: encoding.Sealed(seal)}
	return c, nil
}

// Apply records a change.
func (l *Ledger) Apply(c *Change) {
	if was := c.Was; was != nil {
		r := l.Of(was.Resource)
		if r.Counts[was.Encoding]--; r.Counts[was.Encoding] == 0 {
			delete(r.Counts, was.Encoding)
			r.last[was.Encoding] = c.Revision - 1
		}
		delete(l.objects, c.Key)
	}
	if c.Is != nil {
		l.Of(c.Is.Resource).Counts[c.Is.Encoding]++
		l.objects[c.Key] = c.Is
	}
	c.apply(l)
}

// Silent returns the servers whose identity Lease says that they do not report.
func (l *Ledger) Silent() []agree.ServerID {
	var found []agree.ServerID
	for id, s := range l.Servers {
		if s.Silent && s.Gone == 0 {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// Standing returns a copy of what is known of the resource now.
func (l *Ledger) Standing(gr schema.GroupResource) *Resource {
	now := *l.Of(gr)
	now.Joined, now.Counts, now.last = maps.Clone(now.Joined), maps.Clone(now.Counts), maps.Clone(now.last)
	return &now
}

// Encodings returns how many objects of the resource are stored in each encoding.
func (l *Ledger) Encodings(gr schema.GroupResource) map[agree.Encoding]int {
	return maps.Clone(l.Of(gr).Counts)
}

// StoredSince returns the encodings that objects of the resource are in, or were at the
// revision or after it.
func (l *Ledger) StoredSince(gr schema.GroupResource, revision int64) sets.Set[agree.Encoding] {
	r := l.Of(gr)
	found := sets.KeySet(r.Counts)
	for encoding, last := range r.last {
		if last >= revision {
			found.Insert(encoding)
		}
	}
	return found
}

// Reported returns every server that has a report in any StorageVersion.
func (l *Ledger) Reported() sets.Set[agree.ServerID] {
	found := sets.New[agree.ServerID]()
	for _, r := range l.Resources {
		for _, report := range r.Reports() {
			found.Insert(report.Server)
		}
	}
	return found
}

// Reports returns the reports in the resource's StorageVersion.
func (r *Resource) Reports() []agree.Report {
	if r.Version == nil {
		return nil
	}
	return r.Version.Reports
}

// Common is the encoding on which all reports agree, "" if they do not agree.
func (r *Resource) Common() agree.Encoding {
	if r.Version == nil {
		return ""
	}
	return r.Version.Common
}

// Stored is the stored set: the encodings that the StorageState names.
func (r *Resource) Stored() []string {
	if r.State == nil {
		return nil
	}
	return r.State.Status.PersistedEncodings
}

// StoredVersions are status.storedVersions of the CRD, nil for built-in resources.
func (r *Resource) StoredVersions() []string {
	if r.CRD == nil {
		return nil
	}
	return r.CRD.Status.StoredVersions
}

// Report returns the report of a server, nil if it has none.
func (r *Resource) Report(of agree.ServerID) *agree.Report {
	for i, report := range r.Reports() {
		if report.Server == of {
			return &r.Reports()[i]
		}
	}
	return nil
}

// Ref is the (uid, epoch) of the StorageVersion.
func (r *Resource) Ref() (ref evolve.Ref) {
	if r.Version != nil {
		ref = r.Version.Ref
	}
	return ref
}

// StateRef is the (uid, epoch) for which the StorageState is computed.
func (r *Resource) StateRef() (ref evolve.Ref) {
	if r.State != nil {
		ref = evolve.Ref{UID: string(r.State.Status.StorageVersionUID), Epoch: r.State.Status.Epoch}
	}
	return ref
}

// Stands says whether the StorageState was computed for the (uid, epoch) that the StorageVersion has now.
func (r *Resource) Stands() bool {
	return r.State != nil && r.Version != nil && r.StateRef() == r.Ref()
}

// Exact says whether the stored set is only the encoding that all servers agree on.
func (r *Resource) Exact() bool {
	return r.Stands() && r.Common() != "" && slices.Equal(r.Stored(), []string{string(r.Common())})
}

// Unsettled says what is missing until servers agree on an encoding, the stored set is only that encoding, and the
// CRD's storedVersions name only its version; "" if nothing is missing.
func (r *Resource) Unsettled() string {
	_, version, _ := strings.Cut(string(r.Common().Plain()), "/")
	switch {
	case r.Common() == "":
		return "servers report " + agree.Join(agree.Encodings(r.Reports()))
	case r.State == nil:
		return "it has no StorageState"
	case !r.Exact():
		return fmt.Sprintf("stored set [%s] for %s, agreed on %s at %s", strings.Join(r.Stored(), ","), r.StateRef(), r.Common(), r.Ref())
	case r.CRD != nil && !slices.Equal(r.StoredVersions(), []string{version}):
		return fmt.Sprintf("storedVersions [%s], stored in %s", strings.Join(r.StoredVersions(), " "), version)
	}
	return ""
}
