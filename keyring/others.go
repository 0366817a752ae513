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
	"k8s.io/client-go/kubernetes/scheme"

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

// readsAs says whether a server whose Lease lists these keys opens values with the seal.
func readsAs(lists map[string][]agree.Seal, gr schema.GroupResource, seal agree.Seal) bool {
	for _, pattern := range patternsOf(gr) {
		if list, ok := lists[pattern.String()]; ok {
			return slices.ContainsFunc(list, func(s agree.Seal) bool {
				return s == seal || s != "" && strings.HasSuffix(string(s), ":") && strings.HasPrefix(string(seal), string(s))
			})
		}
	}
	return seal == ""
}

// CheckOthers implements stored.Keys: it says why a server must not encrypt with these keys yet: another
// server could not read what it writes. self is not asked. Without poll every Lease counts;
// with it those count whose server is seen to renew them, which is waited for for as long
// as the Lease lasts: where all servers were killed their Leases are still there.
func (k *Keys) CheckOthers(ctx context.Context, reader migratestore.Reader, layout stored.Layout, known []schema.GroupResource, self agree.ServerID, poll time.Duration) error {
	began, first := time.Now(), map[string]string{}
	for {
		leases, err := readIdentities(ctx, reader, layout)
		if err != nil {
			return fmt.Errorf("identity Leases: %w", err)
		}
		waiting := false
		for _, lease := range leases {
			why := unreadableTo(lease, known, k)
			if why == "" || lease.Name == string(self) {
				continue
			}
			renewed := lease.ResourceVersion
			if seen, ok := first[lease.Name]; poll == 0 || ok && seen != renewed {
				return fmt.Errorf("server %s cannot read %s: have every server load the key behind its first one before any server puts it first", lease.Name, why)
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

// unreadableTo names a resource that the Lease's server could not read if it was encrypted
// with these keys; "" if there is none.
func unreadableTo(lease *coordinationv1.Lease, known []schema.GroupResource, k *Keys) string {
	var lists map[string][]agree.Seal
	if text, ok := lease.Annotations[storageversion.EncryptionKeysAnnotation]; ok && json.Unmarshal([]byte(text), &lists) != nil {
		lists = map[string][]agree.Seal{"*.*": nil}
	}
	patterns := slices.Collect(maps.Keys(k.providers)) // a custom resource each, or several
	for pattern := range lists {
		patterns = append(patterns, schema.ParseGroupResource(pattern))
	}
	for _, gr := range verdict.Resources(known, patterns) {
		if seal := k.Writes(gr); !exempt(gr) && !readsAs(lists, gr, seal) {
			return fmt.Sprintf("%s that are %s", gr, describeKeys([]string{seal.Key()})[0])
		}
	}
	return ""
}

// readIdentities reads the identity Leases straight from etcd. Their resourceVersion is the
// revision that they have there, so that it changes with every renewal.
func readIdentities(ctx context.Context, reader migratestore.Reader, layout stored.Layout) ([]*coordinationv1.Lease, error) {
	var leases []*coordinationv1.Lease
	under := layout.Of(schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}, false) + storageversion.IdentityNamespace + "/"
	err := migratestore.Walk(ctx, reader, under, func(e migratestore.Entry) error {
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.Value, nil, nil)
		lease, ok := obj.(*coordinationv1.Lease)
		if err != nil || !ok || lease.Labels[storageversion.IdentityLabel] != storageversion.IdentityLabelValue || !storageversion.IsServer(lease.Name) || storageversion.IsAggregated(lease) {
			return nil //nolint:nilerr // it is nobody's identity
		}
		lease.ResourceVersion = fmt.Sprint(e.ModRevision)
		leases = append(leases, lease)
		return nil
	})
	return leases, err
}
