package generic_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A new storage version of a CRD, and the migration to it, leave the watch cache as it is, and the
// watches that it serves.
func TestWatchCacheOutlivesStorageVersion(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	crds, crd := twoVersions(t, "gears")
	gears := dynamic.NewForConfigOrDie(shared.admin).Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v2", Resource: "gears"}).Namespace(ns)
	eventually(t, "a custom resource", func(ctx context.Context) error {
		_, err := gears.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "test.concord.dev/v2", "kind": "Gear", "metadata": map[string]any{"name": "g"}, "teeth": int64(12),
		}}, metav1.CreateOptions{})
		return err
	})
	watcher := must[watch.Interface](t)(gears.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"}))
	defer watcher.Stop()
	seen := func() *unstructured.Unstructured {
		t.Helper()
		select {
		case event := <-watcher.ResultChan():
			if u, ok := event.Object.(*unstructured.Unstructured); ok {
				return u
			}
			t.Fatalf("the watch from before saw %s %+v", event.Type, event.Object)
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		return nil
	}
	created, filled := seen(), watchCachesFilled(t, "gears")
	if filled == 0 {
		t.Fatal("no watch cache of gears")
	}

	storeIn(t, crds, crd.Name, "v2")
	eventually(t, "the migration", func(ctx context.Context) error {
		crd, err := crds.Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && !slices.Equal(crd.Status.StoredVersions, []string{"v2"}) {
			err = fmt.Errorf("stored: %v", crd.Status.StoredVersions)
		}
		return err
	})
	if migrated := seen(); migrated.GetResourceVersion() == created.GetResourceVersion() || migrated.GetUID() != created.GetUID() {
		t.Errorf("the watch from before saw %+v after %+v", migrated, created)
	}
	if list := must[*unstructured.UnstructuredList](t)(gears.List(ctx, metav1.ListOptions{ResourceVersion: "0"})); len(list.Items) != 1 {
		t.Errorf("a list from the watch cache: %+v", list)
	}
	if now := watchCachesFilled(t, "gears"); now != filled {
		t.Errorf("watch caches of gears were filled %d times, and %d times after the migration", filled, now)
	}
}

// twoVersions makes a definition with the versions v1, which is stored, and v2.
func twoVersions(t *testing.T, plural string) (crds apiextensionsclient.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	crds = apiextensions.NewForConfigOrDie(shared.admin).ApiextensionsV1().CustomResourceDefinitions()
	definition := cluster.Definition(schema.GroupResource{Group: "test.concord.dev", Resource: plural}, "v1")
	return crds, must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(t.Context(), definition, metav1.CreateOptions{}))
}

// storeIn has a definition of twoVersions stored in one of them.
func storeIn(t *testing.T, crds apiextensionsclient.CustomResourceDefinitionInterface, name, version string) {
	t.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/storage","value":%t},{"op":"replace","path":"/spec/versions/1/storage","value":%t}]`, version == "v1", version == "v2")
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Patch(t.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))
}

// watchCachesFilled says how often watch caches of a resource have listed its objects.
func watchCachesFilled(t *testing.T, resource string) (times int) {
	t.Helper()
	raw := must[[]byte](t)(shared.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "apiserver_watch_cache_initializations_total{") && strings.Contains(line, `resource="`+resource+`"`) {
			n := 0
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			times += n
		}
	}
	return times
}
