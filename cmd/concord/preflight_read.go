package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/stored"
)

// clusterAnswerTimeout bounds the wait for each answer of a live cluster.
const clusterAnswerTimeout = 10 * time.Second

// definitions are the CustomResourceDefinitions by resource; nil is one that cannot be read.
type definitions map[schema.GroupResource]*compat.StoredCRD

// of adds what the resource's definition says of it.
func (d definitions) of(s compat.Stored) compat.Stored {
	crd, ok := d[s.Resource]
	if s.CRD = crd; ok && crd == nil {
		s.Unknown, s.Why = true, "its CustomResourceDefinition cannot be read"
	}
	return s
}

func storedCRD(crd *apiextensionsv1.CustomResourceDefinition) *compat.StoredCRD {
	known := &compat.StoredCRD{}
	encoding := func(version string) string {
		return schema.GroupVersion{Group: crd.Spec.Group, Version: version}.String()
	}
	for _, v := range crd.Spec.Versions {
		known.Versions = append(known.Versions, encoding(v.Name))
	}
	for _, v := range crd.Status.StoredVersions {
		known.StoredVersions = append(known.StoredVersions, encoding(v))
	}
	return known
}

// resources are all of which something is known, sorted by group and resource.
func resources(lists ...[]schema.GroupResource) []schema.GroupResource {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	return slices.Compact(all)
}

// storedInCluster asks a live cluster what may be stored. Raw values are out of reach.
func storedInCluster(ctx context.Context, kubeconfig string, target *compat.Target) ([]compat.Stored, error) {
	config, err := clusterConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cluster, err := join.NewClient(join.AsCommand(withTimeout(config)))
	if err != nil {
		return nil, err
	}
	sets, err := listStoredSets(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("the cluster at %s: %w", config.Host, err)
	}
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := cluster.List(ctx, &crds); err != nil {
		return nil, fmt.Errorf("the cluster at %s: list CustomResourceDefinitions: %w", config.Host, err)
	}
	defined := definitions{}
	for i := range crds.Items {
		crd := &crds.Items[i]
		defined[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = storedCRD(crd)
	}
	var all []compat.Stored
	for _, gr := range resources(target.Resources(), sets.Resources(), slices.Collect(maps.Keys(defined))) {
		all = append(all, defined.of(setInCluster(sets, gr)))
	}
	return all, nil
}

// setInCluster is a resource's stored set. Where both kinds of objects were listed, a
// resource that has neither was never reported, and no server writes before it reports. A
// list that was not found proves nothing.
func setInCluster(sets stored.Sets, gr schema.GroupResource) compat.Stored {
	_, state := sets.States[gr]
	_, version := sets.Versions[gr]
	if len(sets.States) > 0 && len(sets.Versions) > 0 && !state && !version {
		return compat.Stored{Resource: gr, Why: "no server of this cluster has reported that it stores it"}
	}
	return sets.Of(gr)
}

// listStoredSets lists the StorageStates, then the StorageVersions. A cluster that does
// not have the one or the other remembers nothing.
func listStoredSets(ctx context.Context, cluster client.Client) (stored.Sets, error) {
	sets := stored.Sets{
		States:   map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		Versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{},
	}
	var states migrationv1alpha1.StorageStateList
	if err := cluster.List(ctx, &states); err != nil && !apierrors.IsNotFound(err) {
		return sets, fmt.Errorf("list StorageStates: %w", err)
	}
	for i := range states.Items {
		sets.States[schema.ParseGroupResource(states.Items[i].Name)] = &states.Items[i]
	}
	var versions apiserverinternalv1alpha1.StorageVersionList
	if err := cluster.List(ctx, &versions); err != nil && !apierrors.IsNotFound(err) {
		return sets, fmt.Errorf("list StorageVersions: %w", err)
	}
	for i := range versions.Items {
		if gr, err := storageversion.GroupResource(versions.Items[i].Name); err == nil {
			sets.Versions[gr] = &versions.Items[i]
		}
	}
	return sets, nil
}

// storedInEtcd reads from etcd what may be stored: the stored sets, and the raw values of
// resources whose stored set is not known.
func storedInEtcd(ctx context.Context, etcd *clientv3.Client, prefix string, target *compat.Target) ([]compat.Stored, error) {
	reader := rewrite.NewEtcd(etcd)
	sets, err := stored.ReadSets(ctx, reader, prefix)
	if err != nil {
		return nil, err
	}
	defined, err := readDefinitions(ctx, reader, prefix)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinitions: %w", err)
	}
	known := resources(target.Resources(), sets.Resources())
	found, err := present(ctx, reader, prefix, target.Resources())
	if err != nil {
		return nil, fmt.Errorf("look for resources: %w", err)
	}
	var all []compat.Stored
	for _, gr := range resources(known, slices.Collect(maps.Keys(defined)), slices.Collect(maps.Keys(found))) {
		s := sets.Of(gr)
		if s.Unknown {
			s.Census = &compat.StoredCensus{}
			if place, ok := found[gr]; ok {
				s.Census = stored.Count(ctx, reader, place)
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		all = append(all, defined.of(s))
	}
	return all, nil
}

var definitionsResource = schema.GroupResource{Group: apiextensions.GroupName, Resource: "customresourcedefinitions"}

func readDefinitions(ctx context.Context, reader rewrite.Reader, prefix string) (definitions, error) {
	defined := definitions{}
	start := stored.ResourcePrefix(prefix, definitionsResource, false)
	err := rewrite.Walk(ctx, reader, start, func(e rewrite.Entry) error {
		// A definition's name is "<plural>.<group>".
		gr := schema.ParseGroupResource(strings.TrimPrefix(e.Key, start))
		defined[gr] = nil
		var crd apiextensionsv1.CustomResourceDefinition
		if json.Unmarshal(e.Value, &crd) == nil && crd.APIVersion == apiextensionsv1.SchemeGroupVersion.String() {
			defined[gr] = storedCRD(&crd)
		}
		return nil
	})
	return defined, err
}

// present finds the resources that have objects, and where: from the first key of each it
// leaps behind the last.
func present(ctx context.Context, reader rewrite.Reader, prefix string, builtin []schema.GroupResource) (map[schema.GroupResource]string, error) {
	prefix = "/" + strings.Trim(prefix, "/") + "/"
	places := map[string]schema.GroupResource{}
	for _, gr := range builtin {
		places[stored.ResourcePrefix(prefix, gr, false)] = gr
	}
	found := map[schema.GroupResource]string{}
	for next, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		page, err := reader.Range(ctx, next, end, 1, 0)
		if err != nil {
			return nil, err
		}
		if len(page.Entries) == 0 {
			return found, nil
		}
		e := page.Entries[0]
		gr, place := placeOf(strings.TrimPrefix(e.Key, prefix), e.Value)
		if place == "" { // no object's key
			next = e.Key + "\x00"
			continue
		}
		place = prefix + place
		if known, ok := places[place]; ok {
			gr = known
		}
		found[gr], next = place, clientv3.GetPrefixRangeEnd(place)
	}
}

// placeOf returns the resource of a key behind the prefix, and what all of the resource's
// keys begin with; "" for a key that is no object's. Custom resources have their group in
// the key, others only in the values.
func placeOf(path string, value []byte) (gr schema.GroupResource, place string) {
	segments := strings.Split(path, "/")
	switch {
	case len(segments) < 2 || slices.Contains(segments, ""):
		return gr, ""
	case !strings.Contains(segments[0], "."):
		if encoding, _, ok := rewrite.Envelope(value); ok {
			gr.Group, _, _ = strings.Cut(string(encoding), "/")
			if gr.Group == string(encoding) {
				gr.Group = ""
			}
		}
		gr.Resource = segments[0]
		return gr, segments[0] + "/"
	case len(segments) < 3:
		return gr, ""
	}
	return schema.GroupResource{Group: segments[0], Resource: segments[1]}, segments[0] + "/" + segments[1] + "/"
}
