package invariant

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
)

// Reason explains why something is not as it should be, nil if it is. The text is made only when it is needed.
type Reason func() string

// because returns a reason that is a text with arguments, which must not change any more.
func because(format string, args ...any) Reason {
	return func() string { return fmt.Sprintf(format, args...) }
}

// Spared says which object is not migrated although it could be: an object that cannot be migrated
// does not stop the others (DESIGN 3.5).
func (c *Checker) Spared() (why Reason) {
	for _, r := range object.All {
		if r.Custom && c.api.LookDefinition() == nil {
			continue
		}
		sv := c.api.LookStorageVersion(r)
		if sv == nil {
			return because("%s has no StorageVersion", r.Name)
		}
		says := c.read(sv)
		if !says.agreed {
			return because("servers do not agree on %s", r.Name)
		}
		c.objects.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
			if encoding := c.encodingOf(kv); encoding != says.common && !object.Unmarshal(kv.Value).Broken && !c.excepted(kv) {
				why = because("%s is stored in %s, and can be migrated; %s", kv.Key, encoding, Describe(sv))
			}
		})
	}
	return why
}

// Rest says why the world is not at rest yet, in which servers store things in a version:
// I7 When changes and faults stop, every resource ends with agreement and stored set = [common].
func (c *Checker) Rest(stores string) Reason {
	for _, r := range object.All {
		version := stores
		if r.Custom {
			crd := c.api.LookDefinition()
			if crd == nil {
				continue
			}
			version = registry.StoredBy(crd)
			if len(crd.Status.StoredVersions) != 1 || crd.Status.StoredVersions[0] != version {
				return because("storedVersions of %s is %v", crd.Name, crd.Status.StoredVersions)
			}
		}
		sv, state := c.api.LookStorageVersion(r), c.api.LookState(r)
		if sv == nil || state == nil {
			return because("%s has %s and %s", r.Name, Describe(sv), DescribeState(state))
		}
		says := c.read(sv)
		if !says.agreed || says.common.Plain() != r.Encoding(version) {
			return because("servers do not agree on %s of %s: %s", version, r.Name, Describe(sv))
		}
		if view := migrationv1alpha1.ViewState(state); !view.Only(says.common) || view.Of != says.ref {
			return because("%s: %s; %s", r.Name, DescribeState(state), Describe(sv))
		}
	}
	return nil
}

// Silence names a StorageVersion that does not show that a server does not report.
func (c *Checker) Silence() Reason {
	for _, lease := range c.StockLeases() {
		for _, r := range object.All {
			if r.Custom && c.api.LookDefinition() == nil {
				continue
			}
			if sv := c.api.LookStorageVersion(r); !c.noticed(sv, idOf(lease)) || c.read(sv).agreed {
				return because("nobody reports Unknown for %s: %s", idOf(lease), Describe(sv))
			}
		}
	}
	return nil
}
