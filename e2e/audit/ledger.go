package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// WriteAnnotation is how a test's client marks its writes: "<server>/<serial>", where
// the server is the one that the request is sent to. Each write has a new value, so that
// a put with the value of the one before it is a rewrite and not a client's.
const WriteAnnotation = "e2e.concord.dev/write"

// maxViolations bounds how many violations are kept; all are counted.
const maxViolations = 50

// Event is one change of one key. A nil Value is a delete.
type Event struct {
	Revision int64
	Key      string
	Value    []byte
}

// Write is a marked write of a client, as it reached etcd for the first time.
type Write struct {
	// ID is the value of WriteAnnotation.
	ID       string
	Key      string
	Resource schema.GroupResource
	Encoding agree.Encoding
	Revision int64
	// Reports stood at Revision, and these servers did not report then.
	Reports []agree.Report
	Silent  []agree.ServerID
}

// Server returns the name of the server that the write was sent to.
func (w Write) Server() string {
	server, _, _ := strings.Cut(w.ID, "/")
	return server
}

// Ledger is the account of a store from its first revision on. The zero value is not
// usable.
// Invariant: events are applied in the order of their revisions, none left out.
type Ledger struct {
	prefix    string
	exempt    sets.Set[schema.GroupResource]
	open      func(key string, value []byte) (plain []byte, seal agree.Seal, err error)
	ignored   sets.Set[string]
	normal    map[schema.GroupResource]func(fields map[string]any)
	resources map[schema.GroupResource]*resource
	objects   map[string]*object
	writes    map[string]Write
	// silent are the servers whose identity Lease says that they do not report.
	silent   sets.Set[agree.ServerID]
	revision int64
	rewrites int
	// needless are those of the rewrites that left the encoding as it was.
	needless int

	violations []string
	dropped    int
}

// resource is what is known of one resource at the ledger's revision.
type resource struct {
	version *version
	state   *migrationv1alpha1.StorageState
	crd     *apiextensionsv1.CustomResourceDefinition
	counts  map[agree.Encoding]int
	// last is, for each encoding that no object is in any more, the last revision at which one was.
	last map[agree.Encoding]int64
	// told are the standing violations by stored objects, so that each is told once.
	told sets.Set[string]
}

// version is a StorageVersion. It is never changed: a new one takes its place.
type version struct {
	uid      types.UID
	epoch    int64
	revision int64
	reports  []agree.Report
	common   agree.Encoding // "" without agreement
}

type object struct {
	resource schema.GroupResource
	encoding agree.Encoding
	content  *content
	written  sets.Set[string] // IDs of the marked writes this object has had
}

// NewLedger returns the account of an empty store whose objects are under prefix
// ("/registry"). The fence does not bind the exempt resources (DESIGN 3.1).
func NewLedger(prefix string, exempt ...schema.GroupResource) *Ledger {
	return &Ledger{
		prefix:    strings.TrimSuffix(prefix, "/") + "/",
		exempt:    sets.New(exempt...),
		ignored:   sets.New[string](),
		normal:    map[schema.GroupResource]func(map[string]any){},
		resources: map[schema.GroupResource]*resource{},
		objects:   map[string]*object{},
		writes:    map[string]Write{},
		silent:    sets.New[agree.ServerID](),
	}
}

// Ignore leaves a key out of account: one that a test itself writes to etcd.
func (l *Ledger) Ignore(key string) { l.ignored.Insert(key) }

// Normalize says that objects of a resource look different in different encodings. Before
// they are compared, normal brings their fields, in place, to the form that they have in one.
func (l *Ledger) Normalize(gr schema.GroupResource, normal func(fields map[string]any)) {
	l.normal[gr] = normal
}

// Open says how encrypted values are opened, and what they were encrypted with.
func (l *Ledger) Open(open func(key string, value []byte) (plain []byte, seal agree.Seal, err error)) {
	l.open = open
}

// Apply judges one event.
func (l *Ledger) Apply(e Event) {
	l.revision = max(l.revision, e.Revision)
	path, ok := strings.CutPrefix(e.Key, l.prefix)
	if !ok || l.ignored.Has(e.Key) {
		return
	}
	if e.Value == nil {
		l.remove(e, path)
		return
	}
	l.put(e, path)
}

func (l *Ledger) of(gr schema.GroupResource) *resource {
	r := l.resources[gr]
	if r == nil {
		r = &resource{counts: map[agree.Encoding]int{}, last: map[agree.Encoding]int64{}, told: sets.New[string]()}
		l.resources[gr] = r
	}
	return r
}

// unowned are the folders of data that kube-apiserver keeps for itself, past all storage of
// resources, in the one version of it that there is (ARCHITECTURE.md).
var unowned = []string{"ranges/", "masterleases/", "peerserverleases/"}

func isUnowned(path string) bool {
	return slices.ContainsFunc(unowned, func(folder string) bool { return strings.HasPrefix(path, folder) })
}

func (l *Ledger) put(e Event, path string) {
	if isUnowned(path) {
		return
	}
	value, seal := e.Value, agree.Seal("")
	if l.open != nil {
		var err error
		if value, seal, err = l.open(e.Key, e.Value); err != nil {
			l.violate(e, "the value cannot be opened: %v", err)
			return
		}
	}
	encoding, _, ok := migratestore.Envelope(value)
	if !ok {
		l.violate(e, "the value has no readable envelope")
		return
	}
	gr, ok := locate(path, encoding)
	if !ok {
		l.violate(e, "the key is not an object's, but its value is in %s", encoding)
		return
	}
	encoding = encoding.Sealed(seal)
	r := l.of(gr)
	if !l.exempt.Has(gr) {
		l.checkPermission(e, r, encoding)
	}
	c, err := readContent(value)
	if err != nil {
		l.violate(e, "the value cannot be decoded: %v", err)
		return
	}
	if normal := l.normal[gr]; normal != nil {
		normal(c.fields)
	}
	l.record(e, gr, encoding, c)
	l.learn(e, path, c)
	l.checkStored(e, gr)
}

// checkPermission is I2, as far as a put without a mark shows it, and I3. While a server
// lives that does not report, any put may be its, and I3 alone remains.
func (l *Ledger) checkPermission(e Event, r *resource, encoding agree.Encoding) {
	bound := l.silent.Len() == 0
	switch v := r.version; {
	case v == nil && bound:
		l.violate(e, "I2: written in %s without any StorageVersion", encoding)
	case v == nil:
	case bound && !slices.Contains(agree.Encodings(v.reports), encoding):
		l.violate(e, "I2: written in %s, but the reports since revision %d are %v", encoding, v.revision, v.reports)
	case v.common != "" && v.common != encoding:
		l.violate(e, "I3: written in %s while all servers agree on %s since revision %d", encoding, v.common, v.revision)
	}
}

// record takes a put into account and checks I5.
func (l *Ledger) record(e Event, gr schema.GroupResource, encoding agree.Encoding, c *content) {
	r, old := l.of(gr), l.objects[e.Key]
	now := &object{resource: gr, encoding: encoding, content: c, written: sets.New[string]()}
	if old != nil {
		r.forget(old, e.Revision)
		if old.content.uid == c.uid {
			now.written = old.written
		}
	}
	l.objects[e.Key] = now
	r.counts[encoding]++
	if c.write == "" {
		return
	}
	switch {
	case !now.written.Has(c.write):
		now.written.Insert(c.write)
		if first, ok := l.writes[c.write]; ok && old == nil {
			l.violate(e, "I5: write %s is back: it was made at revision %d, and its object deleted since", c.write, first.Revision)
		}
		w := Write{ID: c.write, Key: e.Key, Resource: gr, Encoding: encoding, Revision: e.Revision, Silent: sets.List(l.silent)}
		if r.version != nil {
			w.Reports = r.version.reports
		}
		l.writes[c.write] = w
	case old.content.write != c.write:
		l.violate(e, "I5: write %s was undone: the object is back at %s", old.content.write, c.write)
	default:
		if old.content.sameStatusWriters(c) {
			l.rewrites++
			if encoding == old.encoding {
				l.needless++
			}
		}
		diff := old.content.diff(c)
		if diff != "" {
			l.violate(e, "I5: the content of write %s changed without a client's write: %s", c.write, diff)
		}
		if v := r.version; diff == "" && encoding != old.encoding && v != nil && v.common != encoding {
			l.violate(e, "3.6: rewritten from %s to %s, but since revision %d the agreement is %q", old.encoding, encoding, v.revision, v.common)
		}
	}
}

// forget takes an object out of account that is not stored any more at the revision.
func (r *resource) forget(o *object, revision int64) {
	if r.counts[o.encoding]--; r.counts[o.encoding] == 0 {
		delete(r.counts, o.encoding)
		r.last[o.encoding] = revision - 1
	}
}

func (l *Ledger) remove(e Event, path string) {
	if old := l.objects[e.Key]; old != nil {
		l.of(old.resource).forget(old, e.Revision)
		delete(l.objects, e.Key)
	}
	l.unlearn(path)
}

// checkStored is I1, and with it I4, and I8, and the rule that follows from them for keys. A
// violation that has been told and still stands is not told again.
func (l *Ledger) checkStored(e Event, gr schema.GroupResource) {
	r := l.of(gr)
	now := sets.New[string]()
	stored, current := r.storedSet()
	removable := r.removable()
	for _, encoding := range slices.Sorted(maps.Keys(r.counts)) {
		if current && !stored.Has(string(encoding)) {
			l.tell(e, r, now, fmt.Sprintf("I1: objects of %s are in %s, which is not in the stored set %v at epoch %d",
				gr, encoding, sets.List(stored), r.version.epoch))
		}
		if key := keyOf(encoding); removable.Has(key) {
			l.tell(e, r, now, fmt.Sprintf("keys: objects of %s are in %s, but %s is called removable at epoch %d", gr, encoding, key, r.version.epoch))
		}
		_, version, _ := strings.Cut(string(encoding.Plain()), "/")
		if r.crd != nil && r.crd.DeletionTimestamp.IsZero() && !slices.Contains(r.crd.Status.StoredVersions, version) {
			l.tell(e, r, now, fmt.Sprintf("I8: objects of %s are in %s, which is not in the storedVersions %v of its CRD",
				gr, encoding, r.crd.Status.StoredVersions))
		}
	}
	r.told = now
}

func (l *Ledger) tell(e Event, r *resource, now sets.Set[string], violation string) {
	if now.Insert(violation); !r.told.Has(violation) {
		l.violate(e, "%s", violation)
	}
}

// storedSet returns the stored set, and whether it binds: it is not computed for another
// (uid, epoch) and does not contain Unknown.
func (r *resource) storedSet() (stored sets.Set[string], current bool) {
	if !r.stands() {
		return nil, false
	}
	stored = sets.New(r.state.Status.PersistedEncodings...)
	return stored, len(stored) > 0 && !stored.Has(migrationv1alpha1.Unknown)
}

// keyOf is the name in a StorageState for the key of objects in the encoding.
func keyOf(encoding agree.Encoding) string {
	return cmp.Or(string(encoding.Seal()), "identity")
}

// removable are the keys that the StorageState says no object of the resource needs.
func (r *resource) removable() sets.Set[string] {
	if !r.stands() || r.state.Status.Encryption == nil {
		return nil
	}
	return sets.New(r.state.Status.Encryption.RemovableKeys...)
}

// stands says whether the StorageState is not computed for another (uid, epoch).
func (r *resource) stands() bool {
	return r.state != nil && r.version != nil &&
		r.state.Status.StorageVersionUID == r.version.uid && r.state.Status.Epoch == r.version.epoch
}

func (l *Ledger) violate(e Event, format string, args ...any) {
	if len(l.violations) >= maxViolations {
		l.dropped++
		return
	}
	l.violations = append(l.violations, fmt.Sprintf("revision %d, %s: %s", e.Revision, e.Key, fmt.Sprintf(format, args...)))
}
