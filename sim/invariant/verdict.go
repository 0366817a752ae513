package invariant

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/verdict"
)

// judged is the last verdict on a resource: as long as nothing changes it stays.
type judged struct {
	state   *migrationv1alpha1.StorageState
	version *v1alpha1.StorageVersion
	// safe holds each encoding for which the verdict is safe even for a server that does not decode it.
	safe []agree.Encoding
}

// checkVerdict checks the answer that preflight would give now to whether a server may start:
// I10 The verdict is never safe for a server that cannot decode some stored object.
func (c *Checker) checkVerdict(r *object.Resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion, stored agree.Encoding, key string) {
	last := c.verdicts[r]
	if last == nil || last.state != state || last.version != sv {
		last = &judged{state: state, version: sv, safe: startable(r, setsOf(r, state, sv).Of(r.GroupResource))}
		c.verdicts[r] = last
	}
	if slices.Contains(last.safe, stored.Plain()) {
		c.Violate("I10", "%s is stored in %s, and a server that does not decode it is said to be safe; %s", key, stored, Describe(sv))
	}
}

// counted is a census of a resource, with the stored sets recorded before it: at that time somebody asked whether a
// server may start, and the recorded sets are read again before the answer.
type counted struct {
	before verdict.Sets
	stored compat.Stored
	// looks is how often it was looked at since.
	looks int
	// judged is the verdict of the last look.
	judged judged
}

// censusLooks is how many looks a census is judged at: after that another one is taken.
const censusLooks = 8

// census returns the last census of a resource, judged by the stored sets recorded now; nil if it cannot be trusted.
func (c *Checker) census(r *object.Resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion, believed bool) *counted {
	last := c.counted[r]
	switch {
	case !believed:
		delete(c.counted, r)
		return nil
	case last == nil || last.looks == censusLooks || last.before.Versions[r.GroupResource] == nil && last.judged.version != nil: // the last, since it may go unnoticed
		last = &counted{before: setsOf(r, state, sv)}
		last.stored = last.before.Of(r.GroupResource)
		last.stored.Census = &compat.StoredCensus{Objects: map[string]int64{}}
		c.objects.Scan(r.Prefix, func(kv *mvccpb.KeyValue) { last.stored.Census.Objects[string(c.encodingOf(kv).Plain())]++ })
		c.counted[r] = last
	case last.judged.state == state && last.judged.version == sv:
		return last
	}
	now := last.stored
	now.Reported = slices.Clone(now.Reported)
	last.before.Since(&now, setsOf(r, state, sv))
	last.judged = judged{state: state, version: sv, safe: startable(r, now)}
	last.looks++
	return last
}

// checkCounted is checkVerdict with a census, which goes before the remembered sets. Nobody takes one in a host, of
// what is stored elsewhere.
func (c *Checker) checkCounted(census *counted, sv *v1alpha1.StorageVersion, stored agree.Encoding, key string, unreported bool) {
	if c.objects == c.store && !unreported && slices.Contains(census.judged.safe, stored.Plain()) {
		c.Violate("I10", "%s is stored in %s, and by a census, %+v, a server that does not decode it is said to be safe; %s", key, stored, census.stored, Describe(sv))
	}
}

func setsOf(r *object.Resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion) verdict.Sets {
	sets := verdict.Sets{States: map[schema.GroupResource]*migrationv1alpha1.StorageState{}, Versions: map[schema.GroupResource]*v1alpha1.StorageVersion{}}
	if state != nil {
		sets.States[r.GroupResource] = state
	}
	if sv != nil {
		sets.Versions[r.GroupResource] = sv
	}
	return sets
}

// startable are the encodings of a resource without which a server may start, by the verdict on
// what may be stored.
func startable(r *object.Resource, stored compat.Stored) (safe []agree.Encoding) {
	for e, target := range without[r] {
		if verdict.OfServer(target, []compat.Stored{stored}).Verdict == compat.Safe {
			safe = append(safe, e)
		}
	}
	return safe
}

// without are, by resource and encoding, servers that decode every other encoding.
var without = func() map[*object.Resource]map[agree.Encoding]*compat.Target {
	all := map[*object.Resource]map[agree.Encoding]*compat.Target{}
	versions := []string{"v1", "v2", "v3"}
	release := version.MustParseGeneric("1.37")
	for _, r := range [...]*object.Resource{object.Things, object.Widgets} {
		all[r] = map[agree.Encoding]*compat.Target{}
		for _, lost := range versions {
			var rows []compat.Lifecycle
			for _, v := range versions {
				row := compat.Lifecycle{GroupVersionResource: r.GroupResource.WithVersion(v), Kind: r.Kind}
				if v == lost {
					row.Removed = release
				}
				rows = append(rows, row)
			}
			all[r][r.Encoding(lost)] = compat.ReleaseTarget(rows, release)
		}
	}
	return all
}()
