package keyring

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/verdict"
)

// reading lists the keys that k opens values with, as a server's identity Lease has them.
func (k *Keys) reading() string {
	lists := map[string][]agree.Seal{}
	for pattern, providers := range k.providers {
		for _, p := range providers {
			lists[pattern.String()] = append(lists[pattern.String()], p.seal)
		}
	}
	text, err := json.Marshal(lists)
	if err != nil {
		panic(err) // strings always have a form in JSON
	}
	return string(text)
}

// listOf returns the keys for a resource of a server whose Lease lists these; without encryption that is the empty one.
func listOf(lists map[string][]agree.Seal, gr schema.GroupResource) []agree.Seal {
	for _, pattern := range patternsOf(gr) {
		if list, ok := lists[pattern.String()]; ok {
			return list
		}
	}
	return []agree.Seal{""}
}

// readsAs says whether a server whose Lease lists these keys opens values with the seal.
func readsAs(lists map[string][]agree.Seal, gr schema.GroupResource, seal agree.Seal) bool {
	return slices.ContainsFunc(listOf(lists, gr), func(s agree.Seal) bool {
		return s == seal || s != "" && strings.HasSuffix(string(s), ":") && strings.HasPrefix(string(seal), string(s))
	})
}

// writesAs returns the key with which a server whose Lease lists these encrypts; of a KMS plugin its beginning.
func writesAs(lists map[string][]agree.Seal, gr schema.GroupResource) agree.Seal {
	if list := listOf(lists, gr); len(list) > 0 {
		return list[0]
	}
	return ""
}

// named says whether one of the keys has the name of a seal.
func named(list []agree.Seal, seal agree.Seal) bool {
	return seal != "" && slices.ContainsFunc(list, func(s agree.Seal) bool { return s.Key() == seal.Key() })
}

// otherSecret says of a server or a configuration that it has the seal's name for another secret.
func otherSecret(gr schema.GroupResource, seal agree.Seal) string {
	return fmt.Sprintf("has another secret under the name %s, for %s: give a new key a new name", seal.Key(), gr)
}

// CheckOthers implements stored.Keys: it says why a server must not work with these keys yet: another
// server could not read what it writes, or has a key first, by its Lease, that is not among these. self is not asked.
// Without poll every Lease counts;
// with it those count whose server is seen to renew them, which is waited for for as long
// as the Lease lasts: where all servers were killed their Leases are still there.
func (k *Keys) CheckOthers(ctx context.Context, reader migratestore.Reader, layout stored.Layout, known []schema.GroupResource, self agree.ServerID, poll time.Duration) error {
	began, first := time.Now(), map[string]string{}
	for {
		leases, err := stored.Identities(ctx, reader, layout)
		if err != nil {
			return fmt.Errorf("identity Leases: %w", err)
		}
		waiting := false
		for _, lease := range leases {
			why := k.differs(lease, known)
			if why == "" || lease.Name == string(self) {
				continue
			}
			renewed := lease.ResourceVersion
			if seen, ok := first[lease.Name]; poll == 0 || ok && seen != renewed {
				return fmt.Errorf("server %s %s", lease.Name, why)
			}
			first[lease.Name] = renewed
			waiting = waiting || lease.Spec.LeaseDurationSeconds != nil && time.Since(began) <= time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second
		}
		if !waiting {
			return nil
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// differs says that the Lease's server could not read a resource that was encrypted with these keys, or writes what they do
// not read; "" if neither is so. The Lease of a server that is not Concord's does not tell: nothing is agreed on beside it.
func (k *Keys) differs(lease *coordinationv1.Lease, known []schema.GroupResource) string {
	if storageversion.SilenceOf(lease) == agree.Stock {
		return ""
	}
	lists, err := storageversion.EncryptionKeys(lease)
	if err != nil {
		lists = map[string][]agree.Seal{"*.*": nil}
	}
	patterns := slices.Collect(maps.Keys(k.providers)) // a custom resource each, or several
	for pattern := range lists {
		patterns = append(patterns, schema.ParseGroupResource(pattern))
	}
	for _, gr := range verdict.Resources(known, patterns) {
		if exempt(gr) {
			continue
		}
		if seal := k.Writes(gr); !readsAs(lists, gr, seal) {
			if named(listOf(lists, gr), seal) {
				return otherSecret(gr, seal)
			}
			return fmt.Sprintf("cannot read %s that are %s: have every server load the key behind its first one before any server puts it first",
				gr, describeKeys([]string{seal.Key()})[0])
		}
		if seal := writesAs(lists, gr); !k.reads(gr, seal) {
			if seal != "" && k.readsKey(gr, seal.Key()) {
				return otherSecret(gr, seal)
			}
			return fmt.Sprintf("writes %s that are %s, which this encryption configuration cannot read: keep that key behind the first one until all servers have loaded it",
				gr, describeKeys([]string{seal.Key()})[0])
		}
	}
	return ""
}
