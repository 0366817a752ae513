package verdict_test

import (
	"slices"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/verdict"
)

// TestSince: if a census found no object in a version that the target cannot read, the target is
// safe only if no server can have written one between the census and the verdict.
func TestSince(t *testing.T) {
	policies := schema.GroupResource{Group: admission, Resource: "mutatingadmissionpolicies"}
	const old, young = admission + "/v1beta1", admission + "/v1"
	sets := func(uid types.UID, epoch int64, last map[agree.Encoding]int64) verdict.Sets {
		sv := &v1alpha1.StorageVersion{}
		sv.Name, sv.UID = storageversion.Name(policies), uid
		storageversion.SetHistory(sv, agree.History{Epoch: epoch, Last: last})
		return verdict.Sets{Versions: map[schema.GroupResource]*v1alpha1.StorageVersion{policies: sv}}
	}
	forgetful := sets("a", 9, nil)
	storageversion.SetHistory(forgetful.Versions[policies], agree.History{Epoch: 9, Last: map[agree.Encoding]int64{old: 9}, Forgotten: 5})
	was := sets("a", 3, map[agree.Encoding]int64{young: 1, old: 3})
	for name, test := range map[string]struct {
		before, later verdict.Sets
		want          compat.Safety
	}{
		"nothing new":                         {was, was, compat.Safe},
		"no server ever":                      {verdict.Sets{}, verdict.Sets{}, compat.Safe},
		"one is reported":                     {was, sets("a", 4, map[agree.Encoding]int64{old: 3, young: 4}), compat.Unsafe},
		"one was reported, and another is":    {was, sets("a", 5, map[agree.Encoding]int64{young: 4, old: 5}), compat.Unsafe},
		"a server that reports nothing came":  {was, sets("a", 4, map[agree.Encoding]int64{old: 4, "Unknown": 4}), compat.CouldNotTell},
		"a server that reports nothing stays": {sets("a", 4, map[agree.Encoding]int64{old: 4, "Unknown": 4}), sets("a", 4, map[agree.Encoding]int64{old: 4, "Unknown": 4}), compat.CouldNotTell},
		"encodings are forgotten":             {was, forgetful, compat.CouldNotTell},
		"a new StorageVersion":                {was, sets("b", 1, map[agree.Encoding]int64{old: 1}), compat.CouldNotTell},
		"the StorageVersion is gone":          {was, verdict.Sets{}, compat.CouldNotTell},
		"the first StorageVersion":            {verdict.Sets{}, sets("a", 1, map[agree.Encoding]int64{old: 1}), compat.CouldNotTell},
		"one that cannot be read": {was, verdict.Sets{Versions: map[schema.GroupResource]*v1alpha1.StorageVersion{policies: nil}},
			compat.CouldNotTell},
	} {
		counted := test.before.Of(policies)
		counted.Census = &compat.StoredCensus{Objects: map[string]int64{old: 2}}
		test.before.Since(&counted, test.later)
		target := compat.ReleaseTarget(verdict.Lifecycles(), version.MustParseMajorMinor("1.35"))
		if got := target.Judge(counted); got.Verdict != test.want || got.Verdict == compat.Unsafe && !slices.Equal(got.Undecodable, []string{young}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
