package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
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
)

// fields takes entries out of managedFields that name versions which are not served any more.
type fields struct {
	definitions *definitions
	objects     client.WithWatch
	metadata    metadata.Interface
	clock       clock.WithTicker
	logger      logr.Logger
	// done are the versions for which resources were looked through. Only run uses it.
	done map[schema.GroupResource]string
}

func newFields(config *rest.Config, c client.WithWatch, d *definitions, clock clock.WithTicker, logger logr.Logger) (*fields, error) {
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("a client for metadata: %w", err)
	}
	return &fields{definitions: d, objects: c, metadata: m, clock: clock, logger: logger, done: map[schema.GroupResource]string{}}, nil
}

// run looks through what needs it, from time to time, until ctx ends.
func (f *fields) run(ctx context.Context) {
	ticker := f.clock.NewTicker(fieldsPeriod)
	defer ticker.Stop()
	for {
		for _, obj := range f.definitions.store.List() {
			crd := obj.(*apiextensionsv1.CustomResourceDefinition)
			if err := f.one(ctx, crd); err != nil && ctx.Err() == nil {
				f.logger.Info("managedFields are not all looked through: trying again", "resource", resourceOf(crd).String(), "reason", err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// served are the versions that a definition serves, sorted, and the one it stores, or
// another that is served if that is not.
func served(crd *apiextensionsv1.CustomResourceDefinition) (versions []string, best string) {
	for _, v := range crd.Spec.Versions {
		if v.Served {
			versions = append(versions, v.Name)
			if v.Storage || best == "" {
				best = v.Name
			}
		}
	}
	slices.Sort(versions)
	return versions, best
}

// one looks through the objects of a definition that serves other versions than it did.
func (f *fields) one(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	gr := resourceOf(crd)
	versions, best := served(crd)
	told := strings.Join(versions, ",")
	if best == "" || f.done[gr] == told {
		return nil
	}
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
	cleaned, failed, err := f.all(ctx, gr.WithVersion(best), versions)
	if cleaned+failed > 0 {
		f.logger.Info("managedFields named versions that are not served", "resource", gr.String(), "objects", cleaned, "failed", failed)
	}
	if err != nil || failed > 0 {
		return errors.Join(err, fmt.Errorf("%d objects failed", failed))
	}
	before := client.MergeFrom(state.DeepCopy())
	metav1.SetMetaDataAnnotation(&state.ObjectMeta, fieldsAnnotation, told)
	if err := f.objects.Patch(ctx, state, before); err != nil {
		return err
	}
	f.done[gr] = told
	return nil
}

// all looks through every object, page by page. Objects that cannot be written are told in
// the log, and do not keep the others.
func (f *fields) all(ctx context.Context, resource schema.GroupVersionResource, versions []string) (cleaned, failed int64, err error) {
	var done, lost atomic.Int64
	from := ""
	for {
		list, err := f.metadata.Resource(resource).List(ctx, metav1.ListOptions{Limit: provePage, Continue: from})
		if err != nil {
			return done.Load(), lost.Load(), err
		}
		var page errgroup.Group
		page.SetLimit(proveParallel)
		for i := range list.Items {
			m := &list.Items[i]
			page.Go(func() error {
				return workers.Do(ctx, "managed-fields", func() error {
					changed, err := f.clean(ctx, resource, versions, m)
					switch {
					case ctx.Err() != nil:
						return ctx.Err()
					case err != nil:
						lost.Add(1)
						f.logger.Info("managedFields not cleaned", "resource", resource.GroupResource().String(), "namespace", m.Namespace, "name", m.Name, "reason", err.Error())
					case changed:
						done.Add(1)
					}
					return nil
				})
			})
		}
		if err := page.Wait(); err != nil {
			return done.Load(), lost.Load(), err
		}
		if from = list.Continue; from == "" {
			return done.Load(), lost.Load(), nil
		}
	}
}

// clean writes one object anew if it has to be.
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
		_, err = objects.Patch(ctx, m.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "concord-managed-fields"})
		switch {
		case err == nil:
			return true, nil
		case apierrors.IsNotFound(err):
			return false, nil
		case !apierrors.IsConflict(err):
			return false, err
		}
		if m, err = objects.Get(ctx, m.Name, metav1.GetOptions{}); err != nil {
			return false, client.IgnoreNotFound(err)
		}
	}
	return false, errors.New("others write it all the time")
}
