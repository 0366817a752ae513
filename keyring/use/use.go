// Package use determines which encryption keys are still needed, from the values in raw etcd and from the reports of
// servers.
package use

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/verdict"
)

// Report lists every encryption key and what needs it, at one revision of etcd.
type Report struct {
	Revision int64 `json:"revision"`
	// Keys are sorted by name.
	Keys []Key `json:"keys"`
}

// Key is an encryption key, and what it is needed for.
type Key struct {
	// Name is "<provider>:<version>:<name>", as in values, or "identity". A KMS plugin has one entry for each of its
	// keys, with the fingerprint of the key's ID after the plugin's name. Values that do not name their key are listed
	// as migratestore.Unnamed; then no key is removable.
	Name string `json:"key"`
	// Values counts the stored values that were encrypted with it, Resources by resource.
	Values    int64            `json:"values"`
	Resources map[string]int64 `json:"resources,omitempty"`
	// Writers are the servers that report to encrypt something with it.
	Writers []agree.ServerID `json:"writers,omitempty"`
	// Removable says that no value needs the key and no server may write a value that does.
	Removable bool `json:"removable"`
	// Reason is the verdict's, to an operator.
	Reason string `json:"reason"`
}

// Read counts the values under prefix by their keys and compares them with the reports of servers, all at one
// revision. The error wraps migratestore.ErrCompacted if etcd has compacted that revision in the meantime.
func Read(ctx context.Context, reader migratestore.Reader, prefix string) (Report, error) {
	census, err := migratestore.Count(ctx, reader, prefix, nil)
	if err != nil {
		return Report{}, err
	}
	reader = atRevision{Reader: reader, revision: census.Revision}
	sets, err := stored.ReadSets(ctx, reader, prefix)
	if err != nil {
		return Report{}, err
	}
	leases, err := stored.Identities(ctx, reader, stored.Layout{Prefix: prefix})
	if err != nil {
		return Report{}, err
	}
	return Report{Revision: census.Revision, Keys: judgeKeys(census, sets, leases)}, nil
}

// atRevision reads everything at one revision.
type atRevision struct {
	migratestore.Reader
	revision int64
}

// Range implements migratestore.Reader.
func (r atRevision) Range(ctx context.Context, start, end string, limit, _ int64) (migratestore.Page, error) {
	return r.Reader.Range(ctx, start, end, limit, r.revision)
}

// judgeKeys decides about every key that a value, a report or the history of reports names. A put needs a report of
// exactly the encoding that it writes, and compares the revision of the StorageVersion that holds the
// report. So if no report names a key, no write with that key can follow, but of a resource that is not there yet: the
// first keys of servers' configurations count as reports.
func judgeKeys(census migratestore.Census, sets stored.Sets, leases []*coordinationv1.Lease) []Key {
	uses := map[string]*Key{}
	use := func(key string) *Key {
		if uses[key] == nil {
			uses[key] = &Key{Name: key, Resources: map[string]int64{}}
		}
		return uses[key]
	}
	encrypted := learnKeys(sets, use)
	for _, row := range census.Rows {
		key, sealed := strings.CutPrefix(row.Encoding, migratestore.EncodingEncrypted)
		switch {
		case sealed:
		case !encrypted.Has(row.Resource) || row.Encoding == migratestore.EncodingUnknown || row.Encoding == migratestore.EncodingNone:
			continue // it was never encrypted, or is no object
		default:
			key = evolve.Identity
		}
		u := use(key)
		u.Values += row.Objects
		u.Resources[row.Resource] += row.Objects
	}
	doubt := cmp.Or(doubtOf(sets), learnFirst(leases, use))
	if u := uses[migratestore.Unnamed]; u != nil && doubt == "" {
		doubt = fmt.Sprintf("%s are encrypted and do not tell with what", u.by())
	}
	all := make([]Key, 0, len(uses))
	for _, key := range slices.Sorted(maps.Keys(uses)) {
		u := uses[key]
		slices.Sort(u.Writers)
		u.Writers = slices.Compact(u.Writers)
		u.judge(doubt)
		all = append(all, *u)
	}
	return all
}

// learnKeys notes every key that is, or was, reported, and the servers that report it. It returns the
// resources that were ever encrypted: only of these unencrypted values are of interest.
func learnKeys(s stored.Sets, use func(key string) *Key) (encrypted sets.Set[string]) {
	encrypted = sets.New[string]()
	for gr, sv := range s.Versions {
		if sv == nil {
			continue
		}
		history, err := storageversion.History(sv)
		if err != nil {
			continue // doubtOf tells
		}
		known := slices.Collect(maps.Keys(history.Last))
		if !evolve.Encrypts(known) {
			continue
		}
		encrypted.Insert(gr.String())
		for _, e := range known {
			if e != evolve.Unknown && e.Seal().Known() {
				use(keyName(e))
			}
		}
		for _, r := range agree.Made(storageversion.Reports(sv)) {
			if !r.Encoding.Seal().Known() {
				continue // doubtOf tells
			}
			u := use(keyName(r.Encoding))
			u.Writers = append(u.Writers, r.Server)
		}
	}
	return encrypted
}

// learnFirst notes the first key of each list of each server. A KMS plugin's key is not known there. It returns why that is
// not known of a server; "" if it is of all.
func learnFirst(leases []*coordinationv1.Lease, use func(key string) *Key) (doubt string) {
	for _, lease := range leases {
		lists, err := storageversion.EncryptionKeys(lease)
		if err != nil {
			doubt = err.Error()
		}
		for _, list := range lists {
			if len(list) > 0 && !strings.HasSuffix(string(list[0]), ":") {
				u := use(keyName(agree.Encoding("v1").Sealed(list[0])))
				u.Writers = append(u.Writers, agree.ServerID(lease.Name))
			}
		}
	}
	return doubt
}

func keyName(e agree.Encoding) string {
	seal := e.Seal()
	if _, _, kms := migratestore.KMSKey(string(seal)); kms {
		return string(seal)
	}
	if seal == "" {
		return evolve.Identity
	}
	return seal.Key()
}

// doubtOf explains why the reports do not show what may be written; "" if they do.
func doubtOf(s stored.Sets) string {
	if len(s.Versions) == 0 {
		return "no server reports what it writes"
	}
	grs := slices.SortedFunc(maps.Keys(s.Versions), verdict.CompareResources)
	for _, gr := range grs {
		sv := s.Versions[gr]
		if sv == nil {
			return fmt.Sprintf("the StorageVersion of %s cannot be read", gr)
		}
		if _, err := storageversion.History(sv); err != nil {
			return fmt.Sprintf("the StorageVersion of %s cannot be read: %v", gr, err)
		}
		if silent := agree.Silent(storageversion.Reports(sv)); len(silent) > 0 {
			return fmt.Sprintf("%v does not report what it writes", silent[0])
		}
		for _, r := range storageversion.Reports(sv) {
			if !r.Encoding.Seal().Known() {
				return fmt.Sprintf("%s has not learned from its KMS plugin with which key it encrypts %s", r.Server, gr)
			}
		}
	}
	return ""
}

func (u *Key) judge(doubt string) {
	switch {
	case u.Values == 1:
		u.Reason = "1 value still uses it: " + u.by()
	case u.Values > 1:
		u.Reason = fmt.Sprintf("%d values still use it: %s", u.Values, u.by())
	case len(u.Writers) == 1:
		u.Reason = "no value uses it, and 1 server writes with it"
	case len(u.Writers) > 1:
		u.Reason = fmt.Sprintf("no value uses it, and %d servers write with it", len(u.Writers))
	case doubt != "":
		u.Reason = "nobody can tell: " + doubt
	default:
		u.Removable, u.Reason = true, "no value uses it, and no server writes with it"
	}
}

// by lists the resources of the values.
func (u *Key) by() string {
	var by []string
	for _, resource := range slices.Sorted(maps.Keys(u.Resources)) {
		by = append(by, fmt.Sprintf("%d of %s", u.Resources[resource], resource))
	}
	return strings.Join(by, ", ")
}
