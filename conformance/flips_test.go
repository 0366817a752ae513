package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// newFlips returns flips of an API server that stores a CRD as it is sent, with the storedVersions that
// stored makes of it.
func newFlips(stored func(*apiextensionsv1.CustomResourceDefinition) []string) *flips {
	crds := crdfake.NewClientset()
	for _, verb := range []string{"create", "update"} {
		crds.PrependReactor(verb, "customresourcedefinitions", func(action clienttesting.Action) (bool, runtime.Object, error) {
			crd := action.(interface{ GetObject() runtime.Object }).GetObject().(*apiextensionsv1.CustomResourceDefinition)
			crd.Status.StoredVersions = stored(crd)
			return false, nil, nil
		})
	}
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{flipped: "FlipList"})
	return &flips{crds: crds, objects: objects.Resource(flipped), period: time.Millisecond, limit: time.Second}
}

// storage names the storage version of a CRD, which alone is left where all objects are migrated.
func storage(crd *apiextensionsv1.CustomResourceDefinition) []string {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	return []string{crd.Spec.Versions[i].Name}
}

// TestFlips changes the storage version where objects are migrated, and where they are not.
func TestFlips(t *testing.T) {
	for name, c := range map[string]struct {
		stored func(*apiextensionsv1.CustomResourceDefinition) []string
		lost   bool
		want   string // in the error; empty: none
	}{
		"migrated":                 {stored: storage},
		"never migrated":           {stored: func(*apiextensionsv1.CustomResourceDefinition) []string { return []string{"v1", "v2"} }, want: "is not migrated to v2 within 1s of the change, storedVersions is [v1 v2]"},
		"migrated, an object lost": {stored: storage, lost: true, want: "199 objects of flips.conformance.concord.dev are there, 200 were made"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlips(c.stored)
			if err := f.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.lost {
				if err := f.objects.Delete(t.Context(), "flip-007", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			// The first change is waited for, however soon the suite ends.
			done, err := f.stop()
			if c.want == "" && (err != nil || f.done == 0) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", done, err, c.want)
			}
		})
	}
}
