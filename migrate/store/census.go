package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/api/storageversion"
)

// Words in a Row in place of a group/version, and of a resource.
const (
	// EncodingUnknown is the encoding of values that cannot be read.
	EncodingUnknown = "unknown"
	// EncodingEncrypted, followed by the name from Encryption, is the encoding of encrypted values.
	EncodingEncrypted = "encrypted:"
	// ResourceOther is the resource of keys that are not an object's, and EncodingNone
	// the encoding of their values where these are not objects either.
	ResourceOther = "other"
	EncodingNone  = "none"
)

// Row counts the stored objects of one resource in one encoding.
type Row = census.Row

// Census counts the stored objects, at one revision.
type Census struct {
	Revision int64 `json:"revision"`
	// Rows are sorted by resource and encoding.
	Rows []Row `json:"rows"`
	// Unknown names the keys whose values cannot be read, in key order.
	Unknown []string `json:"unknown"`
	// Undecodable names the values whose envelope can be read and whose content does not
	// decode, in key order; only of a census that verifies.
	Undecodable []Damaged `json:"undecodable,omitempty"`
}

// Damaged is a stored value that does not decode, and why.
type Damaged struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Verify decodes a stored value as an API server does, and says why that fails.
type Verify func(value []byte) error

// censusAttempts is how often a census restarts because its revision was compacted.
const censusAttempts = 5

// Count counts the objects stored under prefix ("/registry") by resource and encoding.
// It reads raw values, all at one revision, and only their envelopes unless verify is given,
// which is called with every value that is not encrypted: no value makes it fail. An error
// comes from the store or ctx.
func Count(ctx context.Context, reader Reader, prefix string, verify Verify) (Census, error) {
	prefix = strings.TrimSuffix(prefix, "/") + "/"
	for range censusAttempts {
		census, err := count(ctx, reader, prefix, verify)
		if !errors.Is(err, ErrCompacted) {
			return census, err
		}
	}
	return Census{}, fmt.Errorf("count the objects under %s: %w, %d times; compact etcd less often or ask again later", prefix, ErrCompacted, censusAttempts)
}

func count(ctx context.Context, reader Reader, prefix string, verify Verify) (Census, error) {
	defaults := Options{}.withDefaults()
	pager := newPager(reader, prefix, defaults.PageKeys, defaults.PageBytes)
	defer pager.close()
	t := newTally()
	t.verify = verify
	for !pager.done {
		page, err := pager.page(ctx)
		if err != nil {
			return Census{}, err
		}
		for _, e := range page.Entries {
			t.add(strings.TrimPrefix(e.Key, prefix), e)
		}
	}
	return t.census(pager.revision), nil
}

// unowned are the folders of the values that kube-apiserver keeps for itself, past all storage
// of resources: the service IP and node port allocators' bitmaps, and the addresses of API
// servers. All are in core/v1, the only version that they have ever had.
var unowned = sets.New("ranges", "masterleases", "peerserverleases")

// Unowned says whether a key, without the prefix, is of a value that kube-apiserver keeps for
// itself, past all storage of resources, in core/v1.
func Unowned(key string) bool {
	folder, _, _ := strings.Cut(key, "/")
	return unowned.Has(folder)
}

// place is an object's resource, as far as its key shows it.
type place struct {
	resource string
	group    string
	// grouped says that the group is known, from the key or from the envelope.
	grouped bool
}

func (p place) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: p.group, Resource: p.resource}
}

type cell struct {
	place    place
	encoding string
}

type amount struct{ objects, bytes int64 }

// tally collects a census. Values that cannot be read do not show their group; it is looked up at the end, among the
// other groups that were found.
type tally struct {
	verify      Verify
	cells       map[cell]amount
	unknown     []string
	undecodable []Damaged
	// seen holds, for each resource whose keys do not show the group, the groups of its readable objects. reported
	// holds the groups that StorageVersions name for each resource.
	seen, reported map[string]sets.Set[string]
}

func newTally() *tally {
	return &tally{
		cells:    map[cell]amount{},
		unknown:  []string{},
		seen:     map[string]sets.Set[string]{},
		reported: map[string]sets.Set[string]{},
	}
}

func (t *tally) add(path string, e Entry) {
	encoding, _, readable := Envelope(e.Value)
	c := cell{place: locate(strings.Split(path, "/"), encoding), encoding: string(encoding)}
	if !readable {
		c.encoding = unreadable(e.Value)
		switch {
		case c.place.resource == ResourceOther && c.encoding == EncodingUnknown:
			c.encoding = EncodingNone
		case c.encoding == EncodingUnknown, c.encoding == EncodingEncrypted+Unnamed:
			t.unknown = append(t.unknown, e.Key)
		}
	} else {
		if !strings.HasPrefix(path, c.place.group+"/") {
			insert(t.seen, c.place.resource, c.place.group)
		}
		if err := t.verify.Why(e.Value); err != nil {
			t.undecodable = append(t.undecodable, Damaged{Key: e.Key, Reason: err.Error()})
		}
	}
	if name, ok := strings.CutPrefix(path, storageversion.Resource.Resource+"/"); ok {
		if gr, err := storageversion.GroupResource(name); err == nil {
			insert(t.reported, gr.Resource, gr.Group)
		}
	}
	n := t.cells[c]
	t.cells[c] = amount{objects: n.objects + 1, bytes: n.bytes + int64(len(e.Value))}
}

// Why says why a value does not decode; nil if it does, or v is nil. A decoder that panics does
// not end the process.
func (v Verify) Why(value []byte) (err error) {
	if v == nil {
		return nil
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("its decoder panicked: %v", cause)
		}
	}()
	return v(value)
}

func unreadable(value []byte) string {
	if name, ok := Encryption(value); ok {
		return EncodingEncrypted + name
	}
	return EncodingUnknown
}

func insert(m map[string]sets.Set[string], key, value string) {
	if m[key] == nil {
		m[key] = sets.New[string]()
	}
	m[key].Insert(value)
}

// renamed are the resources whose keys do not carry their names.
var renamed = map[string]string{
	"minions":           "nodes",
	"controllers":       "replicationcontrollers",
	"ingress":           "ingresses",
	"podsecuritypolicy": "podsecuritypolicies",
}

// locate finds the resource in a key's segments behind the prefix, and its group in the
// segments or, where keys do not have it, in the envelope's encoding ("" if unreadable):
//
//	<resource>/[<namespace>/]<name>           most built-in resources
//	<group>/<resource>/[<namespace>/]<name>   custom resources, CRDs, APIServices
//	services/{specs,endpoints}/...            an old special case
func locate(segments []string, encoding agree.Encoding) place {
	if len(segments) < 2 || slices.Contains(segments, "") {
		return place{resource: ResourceOther, grouped: true}
	}
	first, second := segments[0], segments[1]
	if Unowned(first) {
		return place{resource: ResourceOther, grouped: true}
	}
	gv, err := schema.ParseGroupVersion(string(encoding))
	readable := encoding != "" && err == nil
	switch {
	case strings.Contains(first, ".") || readable && first == gv.Group:
		if len(segments) < 3 {
			return place{resource: ResourceOther, grouped: true}
		}
		return place{resource: second, group: first, grouped: true}
	case first == "services" && len(segments) > 3 && second == "endpoints":
		return place{resource: second, grouped: true}
	}
	resource := cmp.Or(renamed[first], first)
	return place{resource: resource, group: gv.Group, grouped: readable}
}

// census turns the tally into rows.
func (t *tally) census(revision int64) Census {
	rows := map[Row]amount{}
	for c, n := range t.cells {
		if !c.place.grouped {
			c.place.group = t.group(c.place.resource)
		}
		row := Row{Resource: c.place.groupResource().String(), Encoding: c.encoding}
		rows[row] = amount{objects: rows[row].objects + n.objects, bytes: rows[row].bytes + n.bytes}
	}
	census := Census{Revision: revision, Rows: make([]Row, 0, len(rows)), Unknown: t.unknown, Undecodable: t.undecodable}
	for row, n := range rows {
		row.Objects, row.Bytes = n.objects, n.bytes
		census.Rows = append(census.Rows, row)
	}
	slices.SortFunc(census.Rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Encoding, b.Encoding))
	})
	return census
}

// group guesses the group of a resource whose key does not show it and whose value cannot be read: that of its
// readable objects, else that of its StorageVersion, else the core group.
func (t *tally) group(resource string) string {
	for _, groups := range []sets.Set[string]{t.seen[resource], t.reported[resource]} {
		if len(groups) == 1 {
			return sets.List(groups)[0]
		}
	}
	return ""
}
