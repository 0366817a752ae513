package sim

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
	// safe are the encodings without which a server would be told that it may start.
	safe []agree.Encoding
}

// checkVerdict checks the answer that preflight would give now to whether a server may start:
// I10 The verdict is never safe for a server that cannot decode some stored object.
func (w *World) checkVerdict(r *object.Resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion, stored agree.Encoding, key string) {
	last := w.ledger.verdicts[r]
	if last == nil || last.state != state || last.version != sv {
		last = &judged{state: state, version: sv, safe: startable(r, setsOf(r, state, sv).Of(r.GroupResource))}
		w.ledger.verdicts[r] = last
	}
	if slices.Contains(last.safe, stored.Plain()) {
		w.violate("I10", "%s is stored in %s, and a server that does not decode it is said to be safe; %s", key, stored, described{sv})
	}
}

// counted is a census of a resource, and the sets that were remembered before it: somebody asked
// then whether a server may start, and looks once more at the remembered sets before the answer.
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

// census returns the last census of a resource, judged by the sets remembered now; nil where nothing
// is to be believed.
func (w *World) census(r *object.Resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion, believed bool) *counted {
	c := w.ledger.counted[r]
	switch {
	case !believed:
		delete(w.ledger.counted, r)
		return nil
	case c == nil || c.looks == censusLooks || c.before.Versions[r.GroupResource] == nil && c.judged.version != nil: // the last, since it may go unnoticed
		c = &counted{before: setsOf(r, state, sv)}
		c.stored = c.before.Of(r.GroupResource)
		c.stored.Census = &compat.StoredCensus{Objects: map[string]int64{}}
		w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) { c.stored.Census.Objects[string(w.encodingOf(kv).Plain())]++ })
		w.ledger.counted[r] = c
	case c.judged.state == state && c.judged.version == sv:
		return c
	}
	now := c.stored
	now.Reported = slices.Clone(now.Reported)
	c.before.Since(&now, setsOf(r, state, sv))
	c.judged = judged{state: state, version: sv, safe: startable(r, now)}
	c.looks++
	return c
}

// checkCounted is checkVerdict with a census, which goes before the remembered sets.
func (w *World) checkCounted(c *counted, sv *v1alpha1.StorageVersion, stored agree.Encoding, key string, unreported bool) {
	if !unreported && slices.Contains(c.judged.safe, stored.Plain()) {
		w.violate("I10", "%s is stored in %s, and by a census, %+v, a server that does not decode it is said to be safe; %s", key, stored, c.stored, described{sv})
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
