package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/workers"
)

const (
	// fieldsAnnotation, on a StorageState, are the versions that were served when all
	// managedFields were last looked through.
	fieldsAnnotation = "concord.dev/managed-fields"
	// fieldsPeriod is how often it is looked whether a definition serves fewer versions.
	fieldsPeriod = 10 * time.Second
	// fieldsTries is how often an object is read again that others write.
	fieldsTries = 5
	// fieldsNamed bounds how many objects that cannot be written are named in an Event, whose message has 1,024 bytes, and in
	// the log at every try. The log names each of them once.
	fieldsNamed = 5
)

// fields takes entries out of managedFields that name versions which are not served any more.
type fields struct {
	definitions *definitions
	objects     client.WithWatch
	api         migrateapi.API
	metadata    metadata.Interface
	instance    string
	clock       clock.WithTicker
	logger      logr.Logger
	// turn waits until the next object may be written.
	turn func(context.Context) error
	// done are the versions for which resources were looked through; only run uses it. failed puts off those for which
	// that failed, by definition and versions.
	done   map[schema.GroupResource]string
	failed *flowcontrol.Backoff
	// named are hashes of the objects that the log has named, with the kind of error. An object of the same hash as another
	// one would not be named.
	named map[schema.GroupResource]sets.Set[uint64]
}

func newFields(config Config, c client.WithWatch, d *definitions) (*fields, error) {
	m, err := metadata.NewForConfig(config.Rest)
	if err != nil {
		return nil, fmt.Errorf("a client for metadata: %w", err)
	}
	api, err := migrateapi.NewClient(config.Rest)
	if err != nil {
		return nil, err
	}
	failed := flowcontrol.NewBackOff(evolve.Backoff(1), evolve.MaxBackoff)
	failed.Clock = config.Clock
	// To look through all objects may take longer than any pause, which would begin anew at the shortest then.
	failed.HasExpiredFunc = func(now, last time.Time, _ time.Duration) bool { return now.Sub(last) > 24*time.Hour }
	return &fields{
		definitions: d, objects: c, api: api, metadata: m, instance: config.Instance, clock: config.Clock, logger: config.Logger.WithName("managed-fields"),
		turn: patchesPerSecond(int(config.MaxObjectsPerSecond)), done: map[schema.GroupResource]string{}, failed: failed,
		named: map[schema.GroupResource]sets.Set[uint64]{},
	}, nil
}

// patchesPerSecond returns a function that waits until the next patch may be sent; 0: there is no bound.
func patchesPerSecond(n int) func(context.Context) error {
	if n <= 0 {
		return func(ctx context.Context) error { return ctx.Err() }
	}
	return rate.NewLimiter(rate.Limit(n), 1).Wait
}

// run looks through the resources that need it, from time to time, until ctx ends.
func (f *fields) run(ctx context.Context) {
	ticker := f.clock.NewTicker(fieldsPeriod)
	defer ticker.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// look looks through the resources that need it now. One resource that fails is put off, longer each time.
func (f *fields) look(ctx context.Context) {
	maps.DeleteFunc(f.done, func(gr schema.GroupResource, _ string) bool { return f.definitions.of(gr) == nil })
	maps.DeleteFunc(f.named, func(gr schema.GroupResource, _ sets.Set[uint64]) bool { return f.definitions.of(gr) == nil })
	f.failed.GC()
	for _, crd := range f.definitions.all() {
		gr := migrationv1alpha1.ResourceOf(crd)
		versions, stored := served(crd)
		told := strings.Join(versions, ",")
		id := gr.String() + " " + string(crd.UID) + " " + told
		if told == "" || f.done[gr] == told || f.failed.IsInBackOffSinceUpdate(id, f.clock.Now()) {
			continue
		}
		err := f.one(ctx, crd, versions, stored)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			f.failed.DeleteEntry(id)
			delete(f.named, gr)
			continue
		}
		f.failed.Next(id, f.clock.Now())
		f.logger.Info("managedFields are not all looked through", "resource", gr.String(), "reason", err.Error(), "again", f.clock.Now().Add(f.failed.Get(id)))
	}
}

// served are the versions that a definition serves, sorted, and the one it stores.
func served(crd *apiextensionsv1.CustomResourceDefinition) (versions []string, stored string) {
	for _, v := range crd.Spec.Versions {
		if v.Served {
			versions = append(versions, v.Name)
		}
		if v.Storage {
			stored = v.Name
		}
	}
	slices.Sort(versions)
	return versions, stored
}

// one looks through the objects of a definition that serves other versions than it did.
func (f *fields) one(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, versions []string, stored string) error {
	gr, told := migrationv1alpha1.ResourceOf(crd), strings.Join(versions, ",")
	state := &migrationv1alpha1.StorageState{}
	switch err := f.objects.Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(gr)}, state); {
	case apierrors.IsNotFound(err):
		return nil // it will be made
	case err != nil:
		return err
	case state.Annotations[fieldsAnnotation] == told:
		f.done[gr] = told
		return nil
	}
	through, err := f.all(ctx, gr.WithVersion(stored), versions)
	if through.cleaned > 0 {
		f.logger.Info("managedFields named versions that are not served", "resource", gr.String(), "objects", through.cleaned, "failed", through.failed)
	}
	if err := errors.Join(err, through.err()); err != nil {
		f.tell(ctx, crd, err)
		return err
	}
	before := client.MergeFrom(state.DeepCopy())
	metav1.SetMetaDataAnnotation(&state.ObjectMeta, fieldsAnnotation, told)
	if err := f.objects.Patch(ctx, state, before); err != nil {
		return err
	}
	f.done[gr] = told
	return nil
}

// tell writes an event about the definition.
func (f *fields) tell(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, why error) {
	event := migrationv1alpha1.NewDefinitionEvent(crd, f.instance, corev1.EventTypeWarning, migrationv1alpha1.ReasonFieldsNotCleaned,
		"managedFields may name versions that are not served, and server-side apply fail for it: "+why.Error(), f.clock.Now())
	if err := f.objects.Create(ctx, event); err != nil && ctx.Err() == nil {
		f.logger.V(1).Info("An event was not written", "crd", crd.Name, "reason", err.Error())
	}
}

// lookedThrough is the outcome for all objects of a resource.
type lookedThrough struct {
	cleaned, failed int
	// named are the first that failed, by name, with the reason.
	named []string
}

func (l *lookedThrough) fail(name cache.ObjectName, err error) {
	l.failed++
	told := fmt.Sprintf("%s (%v)", name, err)
	at, _ := slices.BinarySearch(l.named, told)
	l.named = slices.Insert(l.named, at, told)
	l.named = l.named[:min(len(l.named), fieldsNamed)]
}

func (l *lookedThrough) err() error {
	if l.failed == 0 {
		return nil
	}
	told := slices.Clone(l.named)
	if more := l.failed - len(told); more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%d objects cannot be written: %s", l.failed, strings.Join(told, "; "))
}

// all looks through every object, page by page, in the version that is stored: a patch through another may take
// fields from objects that are stored in it already. Objects that cannot be written do not keep the others.
func (f *fields) all(ctx context.Context, resource schema.GroupVersionResource, versions []string) (lookedThrough, error) {
	if !slices.Contains(versions, resource.Version) {
		return lookedThrough{}, fmt.Errorf("version %s, which is stored, is not served: serve it (served: true)", resource.Version)
	}
	var mu sync.Mutex
	var through lookedThrough
	anew := func() { through.failed, through.named = 0, nil }
	err := migrateapi.Pages(ctx, pageSize, lists(ctx, f.api, resource), anew, func(items []metav1.PartialObjectMetadata) error {
		var page errgroup.Group
		page.SetLimit(proveParallel)
		for i := range items {
			m := &items[i]
			page.Go(func() error {
				return workers.Do(ctx, "managed-fields", func() error {
					changed, err := f.clean(ctx, resource, versions, m)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case ctx.Err() != nil:
						return ctx.Err()
					case err != nil:
						if f.unnamed(resource.GroupResource(), m, err) {
							f.logger.Info("managedFields of an object cannot be cleaned", "resource", resource.GroupResource().String(), "namespace", m.Namespace, "name", m.Name, "reason", err.Error())
						}
						through.fail(cache.MetaObjectToName(m), err)
					case changed:
						through.cleaned++
					}
					return nil
				})
			})
		}
		return page.Wait()
	})
	return through, err
}

// fieldsSeed is for the hashes of fields.named.
var fieldsSeed = maphash.MakeSeed()

// unnamed says whether the log has not named the object yet for an error of this kind, and notes that it does. The texts of
// errors differ from try to try, for example by ports.
func (f *fields) unnamed(gr schema.GroupResource, m *metav1.PartialObjectMetadata, err error) bool {
	of := maphash.Comparable(fieldsSeed, struct {
		object types.UID
		reason metav1.StatusReason
	}{m.UID, apierrors.ReasonForError(err)})
	if f.named[gr].Has(of) {
		return false
	}
	if f.named[gr] == nil {
		f.named[gr] = sets.Set[uint64]{}
	}
	f.named[gr].Insert(of)
	return true
}

// clean rewrites one object if necessary.
func (f *fields) clean(ctx context.Context, resource schema.GroupVersionResource, versions []string, m *metav1.PartialObjectMetadata) (changed bool, err error) {
	objects := f.metadata.Resource(resource).Namespace(m.Namespace)
	for range fieldsTries {
		entries, stale := observed.CleanFields(m.ManagedFields, resource.Group, versions, resource.Version)
		if !stale {
			return false, nil
		}
		patch, err := json.Marshal([]map[string]any{
			{"op": "replace", "path": "/metadata/managedFields", "value": entries},
			{"op": "replace", "path": "/metadata/resourceVersion", "value": m.ResourceVersion},
		})
		if err != nil {
			return false, err
		}
		if err := f.turn(ctx); err != nil {
			return false, err
		}
		_, refused := objects.Patch(ctx, m.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "concord-managed-fields"})
		switch {
		case refused == nil:
			return true, nil
		case !apierrors.IsNotFound(refused) && !apierrors.IsConflict(refused):
			return false, refused
		}
		switch m, err = objects.Get(ctx, m.Name, metav1.GetOptions{}); {
		case storageversion.IsGone(err):
			return false, nil
		case err != nil:
			return false, err
		case apierrors.IsNotFound(refused): // the namespace is gone, and a webhook asks for its labels
			return false, refused
		}
	}
	return false, errors.New("others write it all the time")
}
