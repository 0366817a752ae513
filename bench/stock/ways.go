package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/bench/corpus"
)

// pageSize is how many objects the other migrators list at a time.
const pageSize = 500

// flip changes the storage version to v2, and waits until the objects are served again.
func (w *way) flip(ctx context.Context) error {
	c := w.stored.Servers.Clients[0]
	if err := corpus.Flip(ctx, c, w.stored.Corpus.Resource().Resource, "v2"); err != nil {
		return err
	}
	return corpus.Eventually(ctx, "the objects are served", func(ctx context.Context) error {
		_, err := c.Do(ctx, "GET", w.stored.Path(0), "", nil)
		return err
	})
}

// inProcess returns the way of a migrator that runs in this program, after a flip.
func (w *way) inProcess(migrate func(context.Context, *way) error) func(context.Context) (span, error) {
	return func(ctx context.Context) (span, error) {
		if err := w.flip(ctx); err != nil {
			return span{}, err
		}
		began := time.Now()
		err := migrate(ctx, w)
		return span{began, time.Now()}, err
	}
}

// putEach migrates as kube-storage-version-migrator does (pkg/migrator/core.go): it lists whole
// objects, writes each back, and reads an object again after a conflict. There is no --kube-api-qps
// here, by which that migrator's manifest limits it to 40 requests a second.
func putEach(ctx context.Context, w *way) error {
	config, err := w.server.Config()
	if err != nil {
		return err
	}
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	objects := c.Resource(w.stored.Corpus.Resource().WithVersion("v2"))
	for from := ""; ; {
		page, err := objects.List(ctx, metav1.ListOptions{Limit: pageSize, Continue: from})
		if err != nil {
			return err
		}
		for i := range page.Items {
			o := &page.Items[i]
			_, err := objects.Update(ctx, o, metav1.UpdateOptions{})
			for apierrors.IsConflict(err) {
				if o, err = objects.Get(ctx, o.GetName(), metav1.GetOptions{}); err == nil {
					_, err = objects.Update(ctx, o, metav1.UpdateOptions{})
				}
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		if from = page.GetContinue(); from == "" {
			return nil
		}
	}
}

// applyEach migrates as Cluster API does (controllers/crdmigrator/crd_migrator.go): it lists the
// metadata of all objects, and applies to each object a patch that contains only its identity.
func applyEach(ctx context.Context, w *way) error {
	config, err := w.server.Config()
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	kind := schema.GroupVersionKind{Group: corpus.CustomGroup, Version: "v2", Kind: w.stored.Corpus.Kind()}
	var all []metav1.PartialObjectMetadata
	for page := (&metav1.PartialObjectMetadataList{}); ; {
		page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := c.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return err
		}
		all = append(all, page.Items...)
		if page.Continue == "" {
			break
		}
	}
	for i := range all {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		u.SetName(all[i].Name)
		u.SetUID(all[i].UID)
		u.SetResourceVersion(all[i].ResourceVersion)
		//nolint:staticcheck // as it is done there
		err := c.Patch(ctx, u, client.Apply, client.FieldOwner("crdmigrator"))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// inTree migrates by kube-controller-manager's migrator itself, which is asked as users have to ask
// it. The migrator waits for some time before it writes the first object; that time does not count:
// the span is from the first object that it logs to the last one.
func (w *way) inTree(ctx context.Context) (span, error) {
	w.turns++
	name := fmt.Sprintf("turn-%d", w.turns)
	if _, err := w.stored.FlipAndMigrateStock(ctx, name, "v2"); err != nil {
		return span{}, err
	}
	var each []line
	err := corpus.Eventually(ctx, "the migrator's log", func(context.Context) error {
		output, err := w.program.Output()
		if err != nil {
			return err
		}
		if len(lines(output, fmt.Sprintf("key=%q", name), "Finished syncing svm resource")) == 0 {
			return errors.New("it has not logged the end")
		}
		// The migrator does not log every object that a client has changed in the meantime, so half
		// of them are enough.
		if each = lines(output, "", "Successfully migrated the resource", "Resource ignored due to conflict"); len(each) < w.stored.Objects()/2 {
			return fmt.Errorf("it has logged %d objects of %d", len(each), w.stored.Objects())
		}
		return nil
	})
	if err != nil {
		return span{}, err
	}
	return span{each[0].at, each[len(each)-1].at}, nil
}
