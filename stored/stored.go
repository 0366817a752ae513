// Package stored reads what is stored: the recorded stored sets of a cluster, straight from etcd, and the census of
// raw values. It also checks a starting server against both.
package stored

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/verdict"
)

// Sets is a cluster's memory of the encodings that may be stored, by resource.
type Sets = verdict.Sets

// ReadSets reads the StorageStates and then the StorageVersions straight from
// etcd, where no server serves them. prefix is the servers' --etcd-prefix. An error comes
// from the store or ctx; no value makes it fail.
func ReadSets(ctx context.Context, reader migratestore.Reader, prefix string) (Sets, error) {
	sets := Sets{
		States:   map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		Versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{},
	}
	states := ResourcePrefix(prefix, migrationv1alpha1.StorageStates, true)
	err := migratestore.Walk(ctx, reader, states, func(e migratestore.Entry) error {
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
	err = migratestore.Walk(ctx, reader, versions, func(e migratestore.Entry) error {
		gr, err := storageversion.GroupResource(strings.TrimPrefix(e.Key, versions))
		if err != nil {
			return nil //nolint:nilerr // a key that is no StorageVersion's names no resource
		}
		sets.Versions[gr] = decodeVersion(e.Value)
		return nil
	})
	if err != nil {
		return Sets{}, fmt.Errorf("StorageVersions: %w", err)
	}
	return sets, nil
}

// decodeVersion returns a StorageVersion; nil if the value cannot be read.
func decodeVersion(value []byte) *apiserverinternalv1alpha1.StorageVersion {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil
	}
	sv, _ := obj.(*apiserverinternalv1alpha1.StorageVersion)
	return sv
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

// namedObjects is how many objects of each encoding a census names.
const namedObjects = 10

// Count counts the raw values under a resource's prefix. The census is partial if an error, or
// the end of ctx, stops it before the end. A value that does not decode by verify counts as
// unreadable; nil reads envelopes only.
func Count(ctx context.Context, reader migratestore.Reader, prefix string, verify migratestore.Verify) *compat.StoredCensus {
	census := &compat.StoredCensus{Objects: map[string]int64{}, First: map[string][]string{}}
	counts := map[string]int64{}
	err := migratestore.EachEncoding(ctx, reader, prefix, verify, func(key, encoding string) {
		counts[encoding]++
		if encoding == migratestore.EncodingUnknown {
			encoding = ""
		}
		if len(census.First[encoding]) < namedObjects {
			census.First[encoding] = append(census.First[encoding], strings.TrimPrefix(key, prefix))
		}
	})
	switch {
	case ctx.Err() != nil:
		census.Partial = "it took too long"
	case err != nil:
		census.Partial = err.Error()
	}
	for encoding, n := range counts {
		switch {
		case encoding == migratestore.EncodingUnknown:
			census.Unreadable += n
		case strings.HasPrefix(encoding, migratestore.EncodingEncrypted):
			census.Encrypted += n
		default:
			census.Objects[encoding] += n
		}
	}
	return census
}
