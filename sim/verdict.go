package sim

import (
	"slices"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// judged is the last verdict on a resource: as long as nothing changes it stays.
type judged struct {
	state   *migrationv1alpha1.StorageState
	version *v1alpha1.StorageVersion
	// safe are the encodings without which a server would be told that it may start.
	safe []agree.Encoding
}

// checkVerdict checks what somebody would be told who asks now whether a server may start:
// I10 The verdict is never safe for a server that cannot decode some stored object.
func (w *World) checkVerdict(r *resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion, stored agree.Encoding, key string) {
	last := w.ledger.verdicts[r]
	if last == nil || last.state != state || last.version != sv {
		last = &judged{state: state, version: sv, safe: startable(r, state, sv)}
		w.ledger.verdicts[r] = last
	}
	if slices.Contains(last.safe, stored.Plain()) {
		w.violate("I10", "%s is stored in %s, and a server that does not decode it is said to be safe; %s", key, stored, described{sv})
	}
}

// startable are the encodings of a resource without which a server may start, as the verdict on
// what is remembered of the resource has it.
func startable(r *resource, state *migrationv1alpha1.StorageState, sv *v1alpha1.StorageVersion) (safe []agree.Encoding) {
	sets := verdict.Sets{States: map[schema.GroupResource]*migrationv1alpha1.StorageState{}, Versions: map[schema.GroupResource]*v1alpha1.StorageVersion{}}
	if state != nil {
		sets.States[r.gr] = state
	}
	if sv != nil {
		sets.Versions[r.gr] = sv
	}
	stored := []compat.Stored{sets.Of(r.gr)}
	for e, target := range without[r] {
		if verdict.OfServer(target, stored).Verdict == compat.Safe {
			safe = append(safe, e)
		}
	}
	return safe
}

// without are, by resource and encoding, servers that decode every other encoding.
var without = func() map[*resource]map[agree.Encoding]*compat.Target {
	all := map[*resource]map[agree.Encoding]*compat.Target{}
	versions := []string{"v1", "v2", "v3"}
	release := version.MustParseGeneric("1.37")
	for _, r := range [...]*resource{things, widgets} {
		all[r] = map[agree.Encoding]*compat.Target{}
		for _, lost := range versions {
			var rows []compat.Lifecycle
			for _, v := range versions {
				row := compat.Lifecycle{GroupVersionResource: r.gr.WithVersion(v), Kind: r.kind}
				if v == lost {
					row.Removed = release
				}
				rows = append(rows, row)
			}
			all[r][r.encoding(lost)] = compat.ReleaseTarget(rows, release)
		}
	}
	return all
}()
