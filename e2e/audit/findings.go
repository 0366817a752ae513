package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/testbed/load"
)

// Violations returns the violations found so far, in the order of revisions.
func (l *Ledger) Violations() []string {
	found := slices.Clone(l.violations)
	if l.dropped > 0 {
		found = append(found, fmt.Sprintf("and %d more", l.dropped))
	}
	return found
}

// Rewrites counts the puts of marked objects that no client made, which are those of migrations.
func (l *Ledger) Rewrites() int { return l.rewrites }

// NeedlessRewrites counts the rewrites that left the encoding unchanged.
func (l *Ledger) NeedlessRewrites() int { return l.needless }

// Writes returns the marked writes in the order of their revisions.
func (l *Ledger) Writes() []Write {
	return slices.SortedFunc(maps.Values(l.writes), func(a, b Write) int { return cmp.Compare(a.Revision, b.Revision) })
}

// Write returns the marked write with the ID.
func (l *Ledger) Write(id string) (Write, bool) {
	w, ok := l.writes[id]
	return w, ok
}

// Strangers checks I2 for marked writes. It returns the writes through a server that, under all
// the IDs it has registered with, had no report of the written encoding at that revision, and
// had not announced that it does not report.
func (l *Ledger) Strangers(ids map[string][]agree.ServerID) []string {
	var found []string
	for _, w := range l.Writes() {
		known := sets.New(ids[w.Server()]...)
		permitted := slices.ContainsFunc(w.Reports, func(r agree.Report) bool {
			return known.Has(r.Server) && r.Encoding == w.Encoding
		})
		if !permitted && !known.HasAny(w.Silent...) {
			found = append(found, fmt.Sprintf("revision %d, %s: I2: write %s in %s, but the server's IDs are %v and the reports %v",
				w.Revision, w.Key, w.ID, w.Encoding, sets.List(known), w.Reports))
		}
	}
	return found
}

// Hashes returns the hash of the content of every stored object of the resource, by
// "namespace/name".
func (l *Ledger) Hashes(gr schema.GroupResource) map[string]string {
	found := map[string]string{}
	for _, o := range l.objects {
		if o.resource == gr {
			found[o.content.name] = load.Hash(o.content.fields)
		}
	}
	return found
}

// Unsettled says what is missing until I7 holds: every resource that has a StorageVersion or an
// object has an agreement, a current stored set of that encoding alone, and a CRD whose
// storedVersions name nothing else. The resources in but are left out, and so are ClusterTrustBundles
// if no server has them: a release before 1.37 leaves those of a later one as they are.
func (l *Ledger) Unsettled(but ...schema.GroupResource) []string {
	var found []string
	for gr, r := range l.Resources {
		if slices.Contains(but, gr) || r.Version == nil && (len(r.Counts) == 0 || gr == trustBundles) {
			continue
		}
		if why := r.Unsettled(); why != "" {
			found = append(found, gr.String()+": "+why)
		}
	}
	slices.Sort(found)
	return found
}

var trustBundles = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
