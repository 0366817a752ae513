package verdict

import (
	"cmp"
	"maps"
	"slices"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
)

// Sets holds a cluster's StorageStates and StorageVersions, which say in which encodings objects may be stored. An
// object that exists and cannot be read is nil.
type Sets struct {
	States   map[schema.GroupResource]*migrationv1alpha1.StorageState
	Versions map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion
}

// Resources returns the resources that anything is remembered of, sorted by group and
// resource.
func (s Sets) Resources() []schema.GroupResource {
	return Resources(slices.Collect(maps.Keys(s.States)), slices.Collect(maps.Keys(s.Versions)))
}

// Here returns the resources whose objects are, or may be, in the cluster's own etcd: an aggregated API server keeps
// its objects in another etcd, and reads them itself.
func (s Sets) Here() []schema.GroupResource {
	return slices.DeleteFunc(s.Resources(), func(gr schema.GroupResource) bool {
		sv, state := s.Versions[gr], s.States[gr]
		if sv != nil {
			return storageversion.IsAggregated(sv)
		}
		return state != nil && state.Annotations[migrationv1alpha1.AggregatedAnnotation] == "true"
	})
}

// CompareResources orders by group, then by resource.
func CompareResources(a, b schema.GroupResource) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
}

// Of returns the encodings in which objects of a resource may be stored, without
// a census.
func (s Sets) Of(gr schema.GroupResource) compat.Stored {
	stored := compat.Stored{Resource: gr}
	state, why := s.state(gr)
	version, whyVersion := s.version(gr)
	for _, e := range evolve.StoredSet(state, version) {
		if e == evolve.Unknown {
			stored.Unknown = true
			continue
		}
		if plain := string(e.Plain()); !slices.Contains(stored.Encodings, plain) {
			stored.Encodings = append(stored.Encodings, plain)
		}
	}
	if version != nil {
		for _, e := range version.History.Reported() {
			stored.Reported = append(stored.Reported, string(e.Plain()))
		}
	}
	if stored.Unknown {
		stored.Why = cmp.Or(why, whyVersion, "its StorageState was computed for another StorageVersion")
	}
	return stored
}

// Encodings returns the encodings in which objects of a resource may be stored, with their
// encryption keys, and evolve.Unknown where not all of them are known.
func (s Sets) Encodings(gr schema.GroupResource) []agree.Encoding {
	state, _ := s.state(gr)
	version, _ := s.version(gr)
	return evolve.StoredSet(state, version)
}

// Since adds to the encodings that servers write of a resource those that they have reported between a
// look at the stored sets and a later one, and may have written while it was counted: without a report
// no server writes. Where that cannot be told, since the StorageVersion is another one, the count is not
// whole. One that came and went between both looks is not noticed.
func (s Sets) Since(counted *compat.Stored, later Sets) {
	_, before := s.Versions[counted.Resource]
	_, after := later.Versions[counted.Resource]
	was, _ := s.version(counted.Resource)
	is, _ := later.version(counted.Resource)
	var since []agree.Encoding
	switch {
	case !before && !after:
	case was == nil || is == nil || was.UID != is.UID:
		since = []agree.Encoding{evolve.Unknown}
	default:
		since = is.History.Since(was.History.Epoch)
	}
	for _, e := range since {
		if e != evolve.Unknown {
			counted.Reported = append(counted.Reported, string(e.Plain()))
			continue
		}
		counted.Unknown, counted.Why = true, "what servers write has changed meanwhile"
		if counted.Census != nil && counted.Census.Partial == "" {
			taken := *counted.Census
			taken.Partial = "servers may have written others since: ask again"
			counted.Census = &taken
		}
	}
}

// Custom says whether the resource was seen to be a custom one: its key has the group in it.
func (s Sets) Custom(gr schema.GroupResource) bool {
	if state := s.States[gr]; state != nil && state.Annotations[migrationv1alpha1.CustomResourceAnnotation] == "true" {
		return true
	}
	sv := s.Versions[gr]
	return sv != nil && storageversion.MadeFor(sv) != ""
}

// state returns what the StorageState says, and why the stored set is not known by it.
func (s Sets) state(gr schema.GroupResource) (view *evolve.State, why string) {
	state, ok := s.States[gr]
	switch {
	case !ok:
		return nil, "it has no StorageState"
	case state == nil:
		return nil, "its StorageState cannot be read"
	}
	v := migrationv1alpha1.ViewState(state)
	if len(v.Stored) == 0 || slices.Contains(v.Stored, evolve.Unknown) {
		why = "its stored set says Unknown"
	}
	return &v, why
}

// version returns what the StorageVersion says; nil, with the reason, if that is nothing.
func (s Sets) version(gr schema.GroupResource) (view *evolve.StorageVersion, why string) {
	sv, ok := s.Versions[gr]
	if !ok {
		return nil, "it has no StorageVersion"
	}
	if sv != nil {
		view, _ = storageversion.View(sv)
	}
	if view == nil {
		return nil, "its StorageVersion cannot be read"
	}
	return view, ""
}
