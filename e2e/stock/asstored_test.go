package stock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/e2e/beside"
	migrateapi "github.com/concord-dev/concord/migrate/api"
)

// failingLists is an API in which the first lists in v2 fail, as many as left says.
type failingLists struct {
	migrateapi.API
	left int
	err  error
}

// List implements migrateapi.API.
func (f *failingLists) List(ctx context.Context, resource schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error) {
	if resource.Version == "v2" {
		if f.left--; f.left >= 0 {
			return nil, f.err
		}
	}
	return f.API.List(ctx, resource, limit, from)
}

// testOnlyAsStored: objects that are stored in v2 already keep fields that v1 lacks, whatever errors lists in v2
// return. If v2 is not served, nothing is migrated.
func testOnlyAsStored(t *testing.T, a *beside.APIServer) {
	const objects, precious = 30, `"extra":"precious"`
	w := a.Define("asstoreds", false, nil)
	w.Fill(objects, nil)
	change := func(how func(v1, v2 *apiextensionsv1.CustomResourceDefinitionVersion)) {
		t.Helper()
		must(t, w.Change(func(crd *apiextensionsv1.CustomResourceDefinition) { how(&crd.Spec.Versions[0], &crd.Spec.Versions[1]) }))
	}
	change(func(v1, v2 *apiextensionsv1.CustomResourceDefinitionVersion) {
		v1.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"mandatory": {Type: "string"}}}
		v1.Storage, v2.Storage = false, true
	})
	stored := func(want map[string]int, extras int) error {
		counts, err := w.Stored(t.Context(), 0)
		values, read := a.Cluster.Values(t.Context(), w.Keys(), 0)
		if got := strings.Count(strings.Join(values, "\n"), precious); got != extras || fmt.Sprint(counts) != fmt.Sprint(want) {
			err = errors.Join(err, read, fmt.Errorf("stored are %v, %d with what v1 lacks; want %v, %d", counts, got, want, extras))
		}
		return err
	}
	// A kube-apiserver takes over a changed CRD late: an object that was created too early is created again.
	first := w.Object(objects)
	first.SetAPIVersion(beside.V2)
	first.Object["extra"] = "precious"
	beside.Eventually(t, beside.Patience, "v2 is stored, and v1 lacks a field", func(ctx context.Context) error {
		v1, v2 := a.Dynamic().Resource(w.In("v1")).Namespace(beside.Namespace), a.Dynamic().Resource(w.In("v2")).Namespace(beside.Namespace)
		if err := v2.Delete(ctx, first.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := v2.Create(ctx, first, metav1.CreateOptions{}); err != nil {
			return err
		}
		seen, err := v1.Get(ctx, first.GetName(), metav1.GetOptions{})
		if err != nil || seen.Object["extra"] != nil {
			return fmt.Errorf("seen in v1 is %v, %w", seen, err)
		}
		return stored(map[string]int{beside.V1: objects, beside.V2: 1}, 1)
	})
	client, err := migrateapi.NewClient(a.Access(beside.AdminToken).Config())
	must(t, err)
	target := migrateapi.Target{GroupResource: w.In("").GroupResource(), Versions: []string{"v2", "v1"}}
	run := func(left int, err error) (migrateapi.Result, error) {
		return migrateapi.New(&failingLists{API: client, left: left, err: err}).Run(t.Context(), target, migrateapi.Options{PageSize: 10}, nil)
	}
	change(func(_, v2 *apiextensionsv1.CustomResourceDefinitionVersion) { v2.Served = false })
	beside.Eventually(t, beside.Patience, "v2 is not served", func(ctx context.Context) error {
		if _, err := a.Dynamic().Resource(w.In("v2")).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is listed: %w", err)
		}
		return nil
	})
	if _, err := run(0, nil); err == nil || !strings.Contains(err.Error(), "serve it") {
		t.Errorf("where v2 is not served: %v", err)
	}
	if err := stored(map[string]int{beside.V1: objects, beside.V2: 1}, 1); err != nil {
		t.Errorf("where v2 is not served: %v", err)
	}
	change(func(_, v2 *apiextensionsv1.CustomResourceDefinitionVersion) { v2.Served = true })
	beside.Eventually(t, beside.Patience, "v2 is served", func(ctx context.Context) error {
		_, err := a.Dynamic().Resource(w.In("v2")).List(ctx, metav1.ListOptions{})
		return err
	})
	for what, failing := range map[string]failingLists{
		"busy once":         {left: 1, err: apierrors.NewServiceUnavailable("starting")},
		"no list in v2":     {left: 1 << 30, err: apierrors.NewInternalError(errors.New("conversion webhook for example.com/v2, Kind=Widget failed: no"))},
		"the first of them": {left: 1, err: apierrors.NewInternalError(errors.New("runtime error"))},
	} {
		if result, err := run(failing.left, failing.err); err != nil || result.Patched != objects+1 {
			t.Errorf("%s: %+v, %v", what, result, err)
		}
		if err := stored(map[string]int{beside.V2: objects + 1}, 1); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
