// Package stored tells what is stored: the stored sets that a cluster remembers, straight
// from etcd, the census of raw values, and the check of a starting server against both.
package stored

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/rewrite"
)

// Sets is what a cluster remembers of the encodings that may be stored, by
// resource. An object that exists and cannot be read is nil.
type Sets struct {
	States   map[schema.GroupResource]*migrationv1alpha1.StorageState
	Versions map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion
}

// ReadSets reads the StorageStates and then the StorageVersions straight from
// etcd, where no server serves them. prefix is the servers' --etcd-prefix. An error comes
// from the store or ctx; no value makes it fail.
func ReadSets(ctx context.Context, reader rewrite.Reader, prefix string) (Sets, error) {
	sets := Sets{
		States:   map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		Versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{},
	}
	states := ResourcePrefix(prefix, migrationv1alpha1.StorageStates, true)
	err := rewrite.Walk(ctx, reader, states, func(e rewrite.Entry) error {
		gr := schema.ParseGroupResource(strings.TrimPrefix(e.Key, states))
		sets.States[gr] = nil
		state := &migrationv1alpha1.StorageState{}
		if json.Unmarshal(e.Value, state) == nil && state.APIVersion == migrationv1alpha1.SchemeGroupVersion.String() {
			sets.States[gr] = state
		}
		return nil
	})
	if err != nil {
		return Sets{}, fmt.Errorf("StorageStates: %w", err)
	}
	versions := ResourcePrefix(prefix, storageversion.Resource, false)
	err = rewrite.Walk(ctx, reader, versions, func(e rewrite.Entry) error {
		gr, err := storageversion.GroupResource(strings.TrimPrefix(e.Key, versions))
		if err != nil {
			return nil //nolint:nilerr // a key that is no StorageVersion's names no resource
		}
		sets.Versions[gr] = nil
		if obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(e.Value, nil, nil); err == nil {
			sets.Versions[gr], _ = obj.(*apiserverinternalv1alpha1.StorageVersion)
		}
		return nil
	})
	if err != nil {
		return Sets{}, fmt.Errorf("StorageVersions: %w", err)
	}
	return sets, nil
}

// DefaultPrefix is kube-apiserver's default for --etcd-prefix.
const DefaultPrefix = "/registry"

// Layout says where servers keep their objects in etcd.
type Layout struct {
	// Prefix is the servers' --etcd-prefix.
	Prefix string
	// Special are the built-in resources that are kept elsewhere than under their own name,
	// and where: kube-apiserver has its nodes in "minions" (kubeapiserver's
	// SpecialDefaultResourcePrefixes).
	Special map[schema.GroupResource]string
}

// Of is where a resource's objects are, with a slash behind it.
func (l Layout) Of(gr schema.GroupResource, custom bool) string {
	if place, ok := l.Special[gr]; ok && !custom {
		return "/" + strings.Trim(l.Prefix, "/") + "/" + strings.Trim(place, "/") + "/"
	}
	return ResourcePrefix(l.Prefix, gr, custom)
}

// ResourcePrefix is where a resource's objects are in etcd, with a slash behind it, under
// the servers' --etcd-prefix, if the layout has it nowhere special.
func ResourcePrefix(prefix string, gr schema.GroupResource, custom bool) string {
	prefix = "/" + strings.Trim(prefix, "/") + "/"
	if custom || gr.Group == apiextensions.GroupName || gr.Group == apiregistration.GroupName {
		prefix += gr.Group + "/"
	}
	return prefix + gr.Resource + "/"
}

// Resources returns the resources that anything is remembered of, sorted by group and
// resource.
func (s Sets) Resources() []schema.GroupResource {
	var all []schema.GroupResource
	for gr := range s.States {
		all = append(all, gr)
	}
	for gr := range s.Versions {
		all = append(all, gr)
	}
	slices.SortFunc(all, CompareResources)
	return slices.Compact(all)
}

// CompareResources orders by group, then by resource.
func CompareResources(a, b schema.GroupResource) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
}

// Of returns what may be stored of a resource (DESIGN 3.7, I1), without a census.
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
	if stored.Unknown {
		stored.Why = cmp.Or(why, whyVersion, "its StorageState was computed for another StorageVersion")
	}
	return stored
}

// Encodings returns what may be stored of a resource with what it may be encrypted with, and
// evolve.Unknown where nobody knows all.
func (s Sets) Encodings(gr schema.GroupResource) []agree.Encoding {
	state, _ := s.state(gr)
	version, _ := s.version(gr)
	return evolve.StoredSet(state, version)
}

// Custom says whether the resource was seen to be a custom one: its key has the group in it.
func (s Sets) Custom(gr schema.GroupResource) bool {
	if state := s.States[gr]; state != nil && state.Annotations[migrationv1alpha1.CustomResourceAnnotation] == "true" {
		return true
	}
	sv := s.Versions[gr]
	return sv != nil && sv.Annotations[storageversion.CRDAnnotation] != ""
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
	if sv == nil {
		return nil, "its StorageVersion cannot be read"
	}
	history, err := storageversion.History(sv)
	if err != nil {
		return nil, "its StorageVersion cannot be read"
	}
	reports := storageversion.Reports(sv)
	common, _ := storageversion.AgreementOn(sv, reports)
	return &evolve.StorageVersion{UID: string(sv.UID), History: history, Reports: reports, Common: common}, ""
}

// Count counts the raw values under a resource's prefix. What stops it before the
// end, ctx for one, makes the census partial.
func Count(ctx context.Context, reader rewrite.Reader, prefix string) *compat.StoredCensus {
	counts, err := rewrite.CountEncodings(ctx, reader, prefix)
	census := &compat.StoredCensus{Objects: map[string]int64{}}
	switch {
	case ctx.Err() != nil:
		census.Partial = "it took too long"
	case err != nil:
		census.Partial = err.Error()
	}
	for encoding, n := range counts {
		switch {
		case encoding == rewrite.EncodingUnknown:
			census.Unreadable += n
		case strings.HasPrefix(encoding, rewrite.EncodingEncrypted):
			census.Encrypted += n
		default:
			census.Objects[encoding] += n
		}
	}
	return census
}
