package planning

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
)

// TestUnfencedHaveOneVersion: the resources whose writes carry no compare are safe as long as nobody can write them in another version: every
// release that can be emulated, or stand beside one that is, decodes one version of them, the same one, and every plan stores that.
func TestUnfencedHaveOneVersion(t *testing.T) {
	binary := compat.BinaryVersion()
	readers := sets.New[string]()
	stored := map[schema.GroupResource]sets.Set[string]{}
	for _, emulation := range compat.AllowedEmulation(binary) {
		for _, minimum := range compat.AllowedMinCompatibility(binary, emulation) {
			plan := mustPlan(t, Options{Effective: effective(t, emulation.String()+"/"+minimum.String())})
			for gr := range storageversion.Unfenced() {
				gv, ok := plan.Storage(gr)
				if !ok {
					t.Errorf("emulating %s with %s at least: no storage version of %s", emulation, minimum, gr)
				}
				if stored[gr] == nil {
					stored[gr] = sets.New[string]()
				}
				stored[gr].Insert(gv.String())
			}
			for release := minimum; !release.GreaterThan(emulation.AddMinor(1)); release = release.AddMinor(1) {
				if readers.Has(release.String()) {
					continue
				}
				readers.Insert(release.String())
				for gr := range storageversion.Unfenced() {
					known := sets.New[string]()
					for _, l := range Lifecycles() {
						if l.GroupResource() == gr && decodes(l, release) {
							known.Insert(l.GroupVersion().String())
						}
					}
					if stored[gr].Insert(known.UnsortedList()...); len(known) != 1 {
						t.Errorf("%s knows %v of %s", release, sets.List(known), gr)
					}
				}
			}
		}
	}
	if !readers.Has(binary.AddMinor(1).String()) || len(readers) < 4 {
		t.Errorf("looked at releases %v only", sets.List(readers))
	}
	for gr, versions := range stored {
		if len(versions) != 1 {
			t.Errorf("%s is stored in %v", gr, sets.List(versions))
		}
	}
}
