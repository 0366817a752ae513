package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const (
	flipPeriod = 20 * time.Second
	// flipLimit is the time within which all objects have to be migrated. It takes seconds, but the
	// suite keeps the machine busy.
	flipLimit   = 3 * time.Minute
	flipObjects = 200
)

var flipped = schema.GroupVersionResource{Group: "conformance.concord.dev", Version: "v1", Resource: "flips"}

// flips changes the storage version of a CRD with objects again and again.
type flips struct {
	crds          clientset.Interface
	objects       dynamic.ResourceInterface
	period, limit time.Duration
	// stopping is closed by stop, and ended once no change is under way.
	stopping, ended chan struct{}
	// done, slowest and err are set once ended is closed: how often the storage version changed and
	// all objects were migrated, how long the slowest change took, and what went wrong.
	done    int
	slowest time.Duration
	err     error
}

// startFlips makes the CRD and its objects, and begins to change its storage version.
func startFlips(ctx context.Context, config *rest.Config) (*flips, error) {
	crds, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	f := &flips{crds: crds, objects: objects.Resource(flipped), period: flipPeriod, limit: flipLimit}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *flips) start(ctx context.Context) error {
	if err := f.fill(ctx); err != nil {
		return err
	}
	f.stopping, f.ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(f.ended)
		f.err = f.run(ctx)
	}()
	return nil
}

func (f *flips) fill(ctx context.Context) error {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: flipped.GroupResource().String()}}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: flipped.Group, Scope: apiextensionsv1.ClusterScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: flipped.Resource, Singular: "flip", Kind: "Flip", ListKind: "FlipList"},
	}
	for _, version := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == "v1",
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"number": {Type: "integer"}}}},
			}},
		})
	}
	if _, err := f.crds.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := f.objects.List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	}); err != nil {
		return fmt.Errorf("%s is not served: %w", crd.Name, err)
	}
	for i := range flipObjects {
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"number": int64(i)}}}
		object.SetAPIVersion(flipped.GroupVersion().String())
		object.SetKind("Flip")
		object.SetName(fmt.Sprintf("flip-%03d", i))
		if _, err := f.objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// run changes the storage version until stop is called. The last change is waited for, so that a short
// run has one as well.
func (f *flips) run(ctx context.Context) error {
	ticker := time.NewTicker(f.period)
	defer ticker.Stop()
	for to := "v2"; ; {
		began := time.Now()
		if err := f.flip(ctx, to); err != nil {
			return err
		}
		f.done++
		f.slowest = max(f.slowest, time.Since(began))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.stopping:
			return nil
		case <-ticker.C:
		}
		if to = "v1"; f.done%2 == 0 {
			to = "v2"
		}
	}
}

// flip changes the storage version, and waits until storedVersions names only the new one.
func (f *flips) flip(ctx context.Context, to string) error {
	crds := f.crds.ApiextensionsV1().CustomResourceDefinitions()
	name := flipped.GroupResource().String()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Storage = crd.Spec.Versions[i].Name == to
		}
		_, err = crds.Update(ctx, crd, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("store %s in %s: %w", name, to, err)
	}
	var last []string
	if err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, f.limit, true, func(ctx context.Context) (bool, error) {
		crd, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = crd.Status.StoredVersions
		return slices.Equal(last, []string{to}), nil
	}); err != nil {
		return fmt.Errorf("%s is not migrated to %s within %s of the change, storedVersions is %v: %w", name, to, f.limit, last, err)
	}
	return nil
}

// stop ends the changes and returns what was done.
func (f *flips) stop() (string, error) {
	close(f.stopping)
	<-f.ended
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := f.objects.List(ctx, metav1.ListOptions{})
	if err == nil && len(list.Items) != flipObjects {
		err = fmt.Errorf("%d objects of %s are there, %d were made", len(list.Items), flipped.GroupResource(), flipObjects)
	}
	return fmt.Sprintf("the storage version of %d objects changed %d times beside it, and they were migrated within %s", flipObjects, f.done, f.slowest.Round(time.Millisecond)), errors.Join(f.err, err)
}
