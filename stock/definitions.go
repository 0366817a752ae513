package stock

import (
	"context"
	"maps"
	"slices"
	"sync"

	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/stock/observed"
)

// definitions are the newest CustomResourceDefinitions that were watched or read.
type definitions struct {
	source cache.Controller

	mu sync.Mutex
	// watched says that the definitions are watched, so that a read may be older than what is known.
	watched bool
	// newest are they, without their schemas.
	newest map[schema.GroupResource]*apiextensionsv1.CustomResourceDefinition
	// said holds the storage versions that definitions have had since the last question, told those that were handed
	// out then, until they are observed.
	said, told map[schema.GroupResource][]agree.Encoding
	// gone holds the uids of deleted definitions: a read of one may arrive late.
	gone map[schema.GroupResource]types.UID
}

func newDefinitions() *definitions {
	return &definitions{
		newest: map[schema.GroupResource]*apiextensionsv1.CustomResourceDefinition{},
		said:   map[schema.GroupResource][]agree.Encoding{}, told: map[schema.GroupResource][]agree.Encoding{},
		gone: map[schema.GroupResource]types.UID{},
	}
}

// watchDefinitions watches all definitions. It calls changed with the resource of each definition that changes in a
// field on which anything depends, and noted with every state of a definition.
func watchDefinitions(c client.WithWatch, changed func(schema.GroupResource), noted func(*apiextensionsv1.CustomResourceDefinition)) *definitions {
	d := newDefinitions()
	d.source = d.watching(c, changed, noted)
	return d
}

// watching returns what watches the definitions that the options choose. It keeps no schemas, which are most
// of a definition.
func (d *definitions) watching(c client.WithWatch, changed func(schema.GroupResource), noted func(*apiextensionsv1.CustomResourceDefinition), options ...client.ListOption) cache.Controller {
	d.mu.Lock()
	d.watched = true
	d.mu.Unlock()
	_, source := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listwatch.Paged(c, migrationv1alpha1.WithoutSchemas, &apiextensionsv1.CustomResourceDefinitionList{}, options...),
		ObjectType:    &apiextensionsv1.CustomResourceDefinition{},
		Transform:     migrationv1alpha1.WithoutSchemas,
		Handler: listwatch.Handler("definitions", cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(obj any, initial bool) {
				crd := obj.(*apiextensionsv1.CustomResourceDefinition)
				d.note(crd, initial, false)
				noted(crd)
				changed(migrationv1alpha1.ResourceOf(crd))
			},
			UpdateFunc: func(old, obj any) {
				was, is := old.(*apiextensionsv1.CustomResourceDefinition), obj.(*apiextensionsv1.CustomResourceDefinition)
				if was.ResourceVersion == is.ResourceVersion {
					return
				}
				d.note(is, false, newer(was, is)) // as after etcd was restored from a backup
				noted(is)
				if !same(was, is) {
					changed(migrationv1alpha1.ResourceOf(is))
				}
			},
			DeleteFunc: func(obj any) {
				if crd, ok := listwatch.Deleted[*apiextensionsv1.CustomResourceDefinition](obj); ok {
					d.forget(crd)
					changed(migrationv1alpha1.ResourceOf(crd))
				}
			},
		}),
	})
	return source
}

// take records a definition that was read. The watch may deliver it much later, and a prune that relied on the watch
// alone would not see what was stored in the meantime.
func (d *definitions) take(crd *apiextensionsv1.CustomResourceDefinition) {
	lean := *crd
	lean.Spec.Versions, lean.Annotations = slices.Clone(crd.Spec.Versions), maps.Clone(crd.Annotations)
	_, _ = migrationv1alpha1.WithoutSchemas(&lean)
	d.mu.Lock()
	watched := d.watched
	d.mu.Unlock()
	d.note(lean.DeepCopy(), false, !watched)
}

// same says whether two states of a definition differ in nothing that anybody goes by: programs write other
// conditions and annotations again and again.
func same(was, is *apiextensionsv1.CustomResourceDefinition) bool {
	return trialOf(was) == trialOf(is) && apihelpers.IsCRDConditionTrue(was, apiextensionsv1.Established) == apihelpers.IsCRDConditionTrue(is, apiextensionsv1.Established)
}

// note takes in a definition, unless a newer one is known, or always, and remembers which versions
// it said to store. Those of before the start, which the initial list has, are for the memory of
// the resource.
func (d *definitions) note(is *apiextensionsv1.CustomResourceDefinition, initial, always bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gr := migrationv1alpha1.ResourceOf(is)
	was := d.newest[gr]
	if uid, gone := d.gone[gr]; gone && uid == is.UID || was != nil && !always && !newer(is, was) {
		return
	}
	delete(d.gone, gr)
	d.newest[gr] = is
	if said := changes(was, is); len(said) > 0 && !initial {
		d.said[gr] = append(d.said[gr], said...)
	}
}

// forget forgets it: all objects are gone with the definition.
func (d *definitions) forget(crd *apiextensionsv1.CustomResourceDefinition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gr := migrationv1alpha1.ResourceOf(crd); d.newest[gr] != nil && d.newest[gr].UID == crd.UID {
		delete(d.newest, gr)
		delete(d.said, gr)
		delete(d.told, gr)
		d.gone[gr] = crd.UID
	}
}

// newer says whether a has a later resourceVersion than b, or none that can be compared.
func newer(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// changes are the versions that a definition may have said to store after it was so and until it
// is so, the last one included; none if it stored the same version all the time. was is nil, or of
// another uid, where it was made meanwhile. Each change of the spec raises the generation by one.
// Where a watch has missed some, all of storedVersions may have been stored meanwhile: the API
// server adds a version to these before it stores it.
func changes(was, is *apiextensionsv1.CustomResourceDefinition) (said []agree.Encoding) {
	made := was == nil || was.UID != is.UID
	before := int64(0)
	if !made {
		before = was.Generation
	}
	if is.Generation > before+1 {
		for _, v := range migrationv1alpha1.StoredVersions(is) {
			if v != migrationv1alpha1.Stores(is) {
				said = append(said, v)
			}
		}
	}
	if len(said) > 0 || made || migrationv1alpha1.Stores(was) != migrationv1alpha1.Stores(is) {
		said = append(said, migrationv1alpha1.Stores(is))
	}
	return said
}

// defined returns the content of the definitions: of all, or of those of some resources.
func (d *definitions) defined(only ...schema.GroupResource) map[schema.GroupResource]observed.Definition {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[schema.GroupResource]observed.Definition{}
	for gr, crd := range d.newest {
		if len(only) > 0 && !slices.Contains(only, gr) {
			continue
		}
		d.told[gr] = append(d.told[gr], d.said[gr]...)
		delete(d.said, gr)
		definition := observed.Definition{Revision: observed.RevisionOf(string(crd.UID), crd.Generation), Stores: migrationv1alpha1.Stores(crd), Said: d.told[gr]}
		established := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
		for _, v := range crd.Spec.Versions {
			definition.Versions = append(definition.Versions, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
			definition.NotServed = definition.NotServed || v.Storage && !v.Served && established
		}
		definition.Stored = migrationv1alpha1.StoredVersions(crd)
		all[gr] = definition
	}
	return all
}

// heard forgets the versions that definitions said to store, after they were observed. Another
// round begins only then.
func (d *definitions) heard(defined map[schema.GroupResource]observed.Definition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for gr := range defined {
		delete(d.told, gr)
	}
}

// of returns the definition of a resource without its schemas; nil if there is none.
func (d *definitions) of(gr schema.GroupResource) *apiextensionsv1.CustomResourceDefinition {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.newest[gr]
}

// all returns every definition, in any order.
func (d *definitions) all() []*apiextensionsv1.CustomResourceDefinition {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.newest))
}

// run watches until ctx ends.
func (d *definitions) run(ctx context.Context) { d.source.RunWithContext(ctx) }
