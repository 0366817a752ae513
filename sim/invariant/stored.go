package invariant

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/sim/object"
)

func (c *Checker) checkStored(r *object.Resource) {
	sv, state := c.api.LookStorageVersion(r), c.api.LookState(r)
	var view evolve.State
	current := false // whether the state's (uid, epoch) is the StorageVersion's
	if sv != nil && state != nil {
		view = migrationv1alpha1.ViewState(state)
		current = view.Of == c.read(sv).ref
	}
	var stored []string
	var uid types.UID // of the definition
	if r.Custom {
		if crd := c.api.LookDefinition(); crd != nil {
			stored, uid = crd.Status.StoredVersions, crd.UID
		}
	}
	believed := !r.Custom || !c.forged
	census := c.census(r, state, sv, believed)
	named := true // whether the stored set has every encoding
	c.objects.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
		encoding := c.encodingOf(kv)
		if c.excepted(kv) {
			return
		}
		named = named && (slices.Contains(view.Stored, encoding) || slices.Contains(view.Stored, evolve.Unknown))
		// I4 Stored set = [v] at the StorageVersion's current (uid, epoch) implies that every
		// stored object is encoded in v.
		if believed && current && len(view.Stored) == 1 && view.Stored[0] != evolve.Unknown && view.Stored[0] != encoding {
			c.Violate("I4", "%s is stored in %s; %s; %s", kv.Key, encoding, view, Describe(sv))
		}
		// I1 Every stored object's encoding is in the stored set, or the set contains Unknown, or
		// the state's (uid, epoch) differs from the StorageVersion's.
		if believed && current && !slices.Contains(view.Stored, encoding) && !slices.Contains(view.Stored, evolve.Unknown) {
			c.Violate("I1", "%s is stored in %s; %s; %s", kv.Key, encoding, view, Describe(sv))
		}
		// I8 The encoding of every stored custom resource is in its CRD's status.storedVersions.
		if stored != nil && c.lowered == 0 && c.madeFor[string(kv.Key)] == uid &&
			!slices.ContainsFunc(stored, func(v string) bool { return r.Encoding(v) == encoding.Plain() }) {
			c.Violate("I8", "%s is stored in %s, and storedVersions is %v", kv.Key, encoding, stored)
		}
		if believed {
			c.checkVerdict(r, state, sv, encoding, string(kv.Key))
			c.checkCounted(census, sv, encoding, string(kv.Key), c.unreported[string(kv.Key)])
		}
	})
	if r.Custom && (named || state == nil) {
		c.forged = false // it is right again, or is made anew
	}
}

// excepted says whether nothing is promised of an object, because of its writer.
func (c *Checker) excepted(kv *mvccpb.KeyValue) bool {
	_, unnoticed := c.unnoticed[string(kv.Key)]
	return unnoticed || c.stray[string(kv.Key)]
}

// Forge notes that the StorageState of widgets is edited. It returns false if it is not to be.
func (c *Checker) Forge() bool {
	if c.lowered > 0 {
		return false
	}
	c.forged = true
	return true
}

// Lower notes that the next write lowers the storedVersions of widgets. It returns false if it is
// not to.
func (c *Checker) Lower() bool {
	if c.forged {
		return false
	}
	c.lowered, c.loweredOf = c.store.Revision()+1, ""
	state, crd := c.api.LookState(object.Widgets), c.api.LookDefinition()
	if state != nil && tells(migrationv1alpha1.ViewState(state), object.Widgets, crd.Status.StoredVersions) {
		c.loweredOf = state.UID
	}
	return true
}

// Kept is called when the trigger has looked at widgets, from a revision on, and found nothing to do: storedVersions
// that somebody had lowered before are restored then, if the stored set is known, or if the StorageState knew what
// storedVersions had named.
func (c *Checker) Kept(began int64) {
	state := c.api.LookState(object.Widgets)
	if state == nil || began < c.lowered ||
		slices.Contains(migrationv1alpha1.ViewState(state).Stored, agree.Unknown) && state.UID != c.loweredOf {
		return
	}
	if c.lowered > 0 {
		c.lowered = 0
		c.checkStored(object.Widgets)
	}
}

// tells reports whether a StorageState names everything that storedVersions name.
func tells(state evolve.State, r *object.Resource, stored []string) bool {
	named := slices.Clone(state.Listed)
	for _, e := range state.Stored {
		named = append(named, e.Plain())
	}
	return !slices.ContainsFunc(stored, func(v string) bool { return !slices.Contains(named, r.Encoding(v)) })
}
