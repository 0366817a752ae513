package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/cmd/preflight"
	"github.com/concord-dev/concord/compat"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/verdict"
)

// storedInEtcd reads from etcd what is stored: the stored sets, and all raw values. Encodings
// that servers began to write while it counted count as written.
func storedInEtcd(ctx context.Context, etcd *clientv3.Client, prefix string, builtin []schema.GroupResource) (*preflight.World, error) {
	reader := migratestore.NewEtcd(etcd)
	sets, err := stored.ReadSets(ctx, reader, prefix)
	if err != nil {
		return nil, err
	}
	world := &preflight.World{List: func(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
		return listStored(ctx, reader, prefix, gvr, visit)
	}}
	if world.Definitions, err = readDefinitions(ctx, reader, prefix); err != nil {
		return nil, fmt.Errorf("CustomResourceDefinitions: %w", err)
	}
	evidence, err := readEvidence(ctx, reader, prefix)
	if err != nil {
		return nil, fmt.Errorf("StorageVersionMigrations: %w", err)
	}
	found, err := present(ctx, reader, prefix, builtin)
	if err != nil {
		return nil, fmt.Errorf("look for resources: %w", err)
	}
	verify := stored.Decodes(planning.Schemes...)
	for _, gr := range verdict.Resources(builtin, sets.Here(), slices.Collect(maps.Keys(world.Definitions)), slices.Collect(maps.Keys(found))) {
		s := sets.Of(gr)
		s.Census = &compat.StoredCensus{}
		if place, ok := found[gr]; ok {
			s.Census = stored.Count(ctx, reader, place, verify)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.Undecodable = evidence[gr]
		world.Stored = append(world.Stored, verdict.Defined(s, world.Definitions))
	}
	return world, since(ctx, reader, prefix, sets, world)
}

// listStored is World.List of an etcd.
func listStored(ctx context.Context, reader migratestore.Reader, prefix string, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
	unread := 0
	err := migratestore.Walk(ctx, reader, stored.ResourcePrefix(prefix, gvr.GroupResource(), false), func(e migratestore.Entry) error {
		object, err := planning.DecodeAs(e.Value, gvr.GroupVersion())
		if err != nil {
			unread++
		} else if kind, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind()); kind == gvr { // Endpoints are below Services
			visit(object)
		}
		return ctx.Err()
	})
	switch {
	case unread == 1:
		err = errors.Join(err, errors.New("1 value is encrypted or does not decode"))
	case unread > 1:
		err = errors.Join(err, fmt.Errorf("%d values are encrypted or do not decode", unread))
	}
	return err
}

// since adds, to the encodings that servers write, the encodings that they have reported since the stored sets were
// read: no server writes without a report.
func since(ctx context.Context, reader migratestore.Reader, prefix string, before verdict.Sets, world *preflight.World) error {
	after, err := stored.ReadSets(ctx, reader, prefix)
	if err != nil {
		return err
	}
	for i := range world.Stored {
		before.Since(&world.Stored[i], after)
	}
	return nil
}

// readEvidence reads the objects that migrations failed at.
func readEvidence(ctx context.Context, reader migratestore.Reader, prefix string) (map[schema.GroupResource]compat.Undecodable, error) {
	var migrations []migrationv1alpha1.StorageVersionMigration
	err := migratestore.Walk(ctx, reader, stored.ResourcePrefix(prefix, migrationv1alpha1.StorageVersionMigrations, true), func(e migratestore.Entry) error {
		var m migrationv1alpha1.StorageVersionMigration
		if json.Unmarshal(e.Value, &m) == nil {
			migrations = append(migrations, m)
		}
		return nil
	})
	return verdict.Evidence(migrations), err
}

var definitionsResource = schema.GroupResource{Group: apiextensions.GroupName, Resource: "customresourcedefinitions"}

func readDefinitions(ctx context.Context, reader migratestore.Reader, prefix string) (map[schema.GroupResource]*verdict.Definition, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	// They are stored in v1beta1, which is shorter, and conversions lead by the internal version.
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder()
	defined := map[schema.GroupResource]*verdict.Definition{}
	start := stored.ResourcePrefix(prefix, definitionsResource, false)
	err := migratestore.Walk(ctx, reader, start, func(e migratestore.Entry) error {
		// A definition's name is "<plural>.<group>".
		gr := schema.ParseGroupResource(strings.TrimPrefix(e.Key, start))
		defined[gr] = nil
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if internal, err := runtime.Decode(decoder, e.Value); err == nil && scheme.Convert(internal, crd, nil) == nil {
			d := verdict.DefinitionOf(crd)
			defined[gr] = &d
		}
		return nil
	})
	return defined, err
}

// present finds the resources that have objects, and where: from the first key of each it
// leaps behind the last.
func present(ctx context.Context, reader migratestore.Reader, prefix string, builtin []schema.GroupResource) (map[schema.GroupResource]string, error) {
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

// placeOf returns the resource of a key behind the prefix, and the path that all of the
// resource's keys begin with; "" for a key that is no object's. Custom resources have their
// group in the key, others only in the values.
func placeOf(path string, value []byte) (gr schema.GroupResource, place string) {
	segments := strings.Split(path, "/")
	switch {
	case len(segments) < 2 || slices.Contains(segments, "") || migratestore.Unowned(path):
		return gr, ""
	case !strings.Contains(segments[0], "."):
		if encoding, _, ok := migratestore.Envelope(value); ok {
			gr.Group = encoding.Group()
		}
		gr.Resource = segments[0]
		return gr, segments[0] + "/"
	case len(segments) < 3:
		return gr, ""
	}
	return schema.GroupResource{Group: segments[0], Resource: segments[1]}, segments[0] + "/" + segments[1] + "/"
}
