package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/testbed/ledger"
)

// maxViolations bounds how many violations are kept; all are counted.
const maxViolations = 50

// Write is a marked write of a client, as it reached etcd for the first time.
type Write struct {
	// ID is the value of load.WriteAnnotation.
	ID       string
	Key      string
	Resource schema.GroupResource
	Encoding agree.Encoding
	Revision int64
	// Reports are the reports at Revision, Silent the servers that did not report then.
	Reports []agree.Report
	Silent  []agree.ServerID
}

// Server returns the name of the server that the write was sent to.
func (w Write) Server() string {
	server, _, _ := strings.Cut(w.ID, "/")
	return server
}

// Ledger judges all that was written to an etcd since its first revision; NewLedger makes one.
type Ledger struct {
	*ledger.Ledger
	exempt  sets.Set[schema.GroupResource]
	ignored sets.Set[string]
	normal  map[schema.GroupResource]func(fields map[string]any)
	objects map[string]*object
	writes  map[string]Write
	// told holds the violations by stored objects that still hold, so that each is reported once.
	told     map[schema.GroupResource]sets.Set[string]
	rewrites int
	// needless counts the rewrites that left the encoding unchanged.
	needless int

	violations []string
	dropped    int
}

type object struct {
	resource schema.GroupResource
	content  *content
	written  sets.Set[string] // IDs of the marked writes this object has had
}

// NewLedger returns the ledger of an empty etcd, in which objects will be stored under prefix ("/registry"). The
// fence does not bind the exempt resources.
func NewLedger(prefix string, exempt ...schema.GroupResource) *Ledger {
	return &Ledger{
		Ledger:  ledger.New(prefix),
		exempt:  sets.New(exempt...),
		ignored: sets.New[string](),
		normal:  map[schema.GroupResource]func(map[string]any){},
		objects: map[string]*object{},
		writes:  map[string]Write{},
		told:    map[schema.GroupResource]sets.Set[string]{},
	}
}

// Watch feeds a Ledger from etcd.
type Watch = ledger.Watch[*Ledger]

// Start follows the whole store from its first revision on, so that it has to be called
// before anything is compacted. The etcd need not run yet.
func Start(client *clientv3.Client, prefix string, exempt ...schema.GroupResource) *Watch {
	l := NewLedger(prefix, exempt...)
	w := ledger.NewWatch(l, l.Apply)
	w.Start(client, prefix, 1)
	return w
}

// Ignore makes the ledger ignore a key, for example one that a test itself writes to etcd.
func (l *Ledger) Ignore(key string) { l.ignored.Insert(key) }

// Normalize says that objects of a resource look different in different encodings. Before
// they are compared, normal brings their fields, in place, to the form that they have in one.
func (l *Ledger) Normalize(gr schema.GroupResource, normal func(fields map[string]any)) {
	l.normal[gr] = normal
}

// Apply judges one event.
func (l *Ledger) Apply(e ledger.Event) {
	if l.ignored.Has(e.Key) {
		return
	}
	c, err := l.Read(e)
	switch {
	case err != nil:
		l.violate(e, "%v", err)
	case c == nil:
	case c.Is == nil:
		l.Ledger.Apply(c)
		delete(l.objects, e.Key)
	default:
		l.put(c)
	}
}

func (l *Ledger) put(c *ledger.Change) {
	gr, e := c.Is.Resource, c.Event
	if !l.exempt.Has(gr) {
		l.checkPermission(e, l.Of(gr), c.Is.Encoding)
	}
	is, err := readContent(c.Value)
	if err != nil {
		l.violate(e, "the value cannot be decoded: %v", err)
		return
	}
	if normal := l.normal[gr]; normal != nil {
		normal(is.fields)
	}
	var old *ledger.Version
	if about := l.Resources[c.About]; about != nil {
		old = about.Version
	}
	l.Ledger.Apply(c)
	l.record(c, is)
	if !c.About.Empty() {
		if v := l.Of(c.About).Version; v != old {
			l.checkVersion(e, c.About, old, v)
		}
		l.checkStored(e, c.About)
	}
	l.checkStored(e, gr)
}

// checkPermission checks I3, and I2 as far as a put without a mark shows it. While there is a server that does
// not report, any put may come from that server, and only I3 is checked.
func (l *Ledger) checkPermission(e ledger.Event, r *ledger.Resource, encoding agree.Encoding) {
	bound := len(l.Silent()) == 0
	switch v := r.Version; {
	case v == nil && bound:
		l.violate(e, "I2: written in %s without any StorageVersion", encoding)
	case v == nil:
	case bound && !slices.Contains(agree.Encodings(v.Reports), encoding):
		l.violate(e, "I2: written in %s, but the reports since revision %d are %v", encoding, v.Revision, v.Reports)
	case v.Common != "" && v.Common != encoding:
		l.violate(e, "I3: written in %s while all servers agree on %s since revision %d", encoding, v.Common, v.Revision)
	}
}

// checkVersion judges a StorageVersion that replaces another.
func (l *Ledger) checkVersion(e ledger.Event, gr schema.GroupResource, old, v *ledger.Version) {
	if common, _ := agree.Common(v.Reports); common != v.Common {
		l.violate(e, "commonEncodingVersion is %q with reports %v", v.Common, v.Reports)
	}
	if old != nil && old.UID == v.UID && old.Epoch > v.Epoch {
		l.violate(e, "the epoch of %s goes back from %d to %d", gr, old.Epoch, v.Epoch)
	}
}

// record stores a put's content and checks I5.
func (l *Ledger) record(e *ledger.Change, c *content) {
	gr, encoding, old := e.Is.Resource, e.Is.Encoding, l.objects[e.Key]
	now := &object{resource: gr, content: c, written: sets.New[string]()}
	if old != nil && old.content.uid == c.uid {
		now.written = old.written
	}
	l.objects[e.Key] = now
	if c.write == "" {
		return
	}
	v := l.Of(gr).Version
	switch {
	case !now.written.Has(c.write):
		now.written.Insert(c.write)
		if first, ok := l.writes[c.write]; ok && old == nil {
			l.violate(e.Event, "I5: write %s is back: it was made at revision %d, and its object deleted since", c.write, first.Revision)
		}
		l.writes[c.write] = Write{
			ID: c.write, Key: e.Key, Resource: gr, Encoding: encoding, Revision: e.Revision, Reports: l.Of(gr).Reports(), Silent: l.Silent(),
		}
	case old.content.write != c.write:
		l.violate(e.Event, "I5: write %s was undone: the object is back at %s", old.content.write, c.write)
	default:
		if old.content.sameStatusWriters(c) {
			l.rewrites++
			if encoding == e.Was.Encoding {
				l.needless++
			}
		}
		diff := old.content.diff(c)
		if diff != "" {
			l.violate(e.Event, "I5: the content of write %s changed without a client's write: %s", c.write, diff)
		}
		if diff == "" && encoding != e.Was.Encoding && v != nil && v.Common != encoding {
			l.violate(e.Event, "3.6: rewritten from %s to %s, but since revision %d the agreement is %q", e.Was.Encoding, encoding, v.Revision, v.Common)
		}
	}
}

// checkStored checks I1 (and with it I4), I8, and that no removable key is in use, which follows from them. A
// violation that was reported and still holds is not reported again.
func (l *Ledger) checkStored(e ledger.Event, gr schema.GroupResource) {
	r := l.Of(gr)
	now := sets.New[string]()
	tell := func(format string, args ...any) {
		violation := fmt.Sprintf(format, args...)
		if now.Insert(violation); !l.told[gr].Has(violation) {
			l.violate(e, "%s", violation)
		}
	}
	stored, binds := storedSet(r)
	removable := removableKeys(r)
	for _, encoding := range slices.Sorted(maps.Keys(r.Counts)) {
		if binds && !stored.Has(string(encoding)) {
			tell("I1: objects of %s are in %s, which is not in the stored set %v at epoch %d", gr, encoding, sets.List(stored), r.Version.Epoch)
		}
		if key := cmp.Or(string(encoding.Seal()), "identity"); removable.Has(key) {
			tell("keys: objects of %s are in %s, but %s is called removable at epoch %d", gr, encoding, key, r.Version.Epoch)
		}
		_, version, _ := strings.Cut(string(encoding.Plain()), "/")
		if r.CRD != nil && r.CRD.DeletionTimestamp.IsZero() && !slices.Contains(r.CRD.Status.StoredVersions, version) {
			tell("I8: objects of %s are in %s, which is not in the storedVersions %v of its CRD", gr, encoding, r.CRD.Status.StoredVersions)
		}
	}
	l.told[gr] = now
}

// storedSet returns the stored set, and whether it binds: whether it was computed for the present (uid, epoch)
// and does not contain Unknown.
func storedSet(r *ledger.Resource) (stored sets.Set[string], binds bool) {
	stored = sets.New(r.Stored()...)
	return stored, r.Stands() && len(stored) > 0 && !stored.Has(migrationv1alpha1.Unknown)
}

// removableKeys returns the keys that no object of the resource needs according to the StorageState. Unencrypted
// values have the key "identity".
func removableKeys(r *ledger.Resource) sets.Set[string] {
	if !r.Stands() || r.State.Status.Encryption == nil {
		return nil
	}
	return sets.New(r.State.Status.Encryption.RemovableKeys...)
}

func (l *Ledger) violate(e ledger.Event, format string, args ...any) {
	if len(l.violations) >= maxViolations {
		l.dropped++
		return
	}
	l.violations = append(l.violations, fmt.Sprintf("revision %d, %s: %s", e.Revision, e.Key, fmt.Sprintf(format, args...)))
}
