package join

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch"
)

func gadgets(annotations map[string]string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com", Annotations: annotations}}
	crd.Spec.Group, crd.Spec.Names.Plural = "example.com", "gadgets"
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{}}}
	return crd
}

// withGadgets makes clients of an API that has the definition of gadgets.
func withGadgets(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(gadgets(nil))
}

// TestChangeIsNoticed: from the parts that are kept of a definition it can be told that its spec has changed, and that its
// hold was set, or released.
func TestChangeIsNoticed(t *testing.T) {
	kept := func(annotations map[string]string) *apiextensionsv1.CustomResourceDefinition {
		obj, err := withoutSchemas(gadgets(annotations))
		must(t, err)
		return obj.(*apiextensionsv1.CustomResourceDefinition)
	}
	mended := kept(nil)
	mended.Generation++
	told := 0
	d := &definitions{changed: func(*apiextensionsv1.CustomResourceDefinition) { told++ }}
	if d.compare(kept(nil), mended); told != 1 {
		t.Errorf("a change of the spec is told %d times", told)
	}
	free, held := map[string]string{"large": "text"}, map[string]string{"large": "text", migrationv1alpha1.HoldAnnotation: "true"}
	for _, test := range []struct {
		name     string
		old, new map[string]string
		told     int
	}{
		{"set", free, held, 1},
		{"released", held, free, 1},
		{"still free", free, nil, 0},
		{"still held", held, map[string]string{migrationv1alpha1.HoldAnnotation: "True"}, 0},
	} {
		told := 0
		d := &definitions{changed: func(*apiextensionsv1.CustomResourceDefinition) { told++ }}
		d.compare(kept(test.old), kept(test.new))
		if told != test.told {
			t.Errorf("%s: told %d times, want %d", test.name, told, test.told)
		}
	}
	crd := kept(held)
	if want := (map[string]string{migrationv1alpha1.HoldAnnotation: "true"}); !maps.Equal(crd.Annotations, want) || crd.Spec.Versions[0].Schema != nil {
		t.Errorf("kept are %v and the schema %v", crd.Annotations, crd.Spec.Versions[0].Schema)
	}
}

// TestDefinitionsAreListed: definitions that exist at the start are told of as soon as they are
// listed, whatever the watch does; here it sends nothing, and no bookmark.
func TestDefinitionsAreListed(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	note := func(call string) { mu.Lock(); defer mu.Unlock(); calls = append(calls, call) }
	objects := withGadgets(t).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			note("list")
			return c.List(ctx, list, options...)
		},
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			note("watch")
			return watch.NewFake(), nil
		},
	}).Build()
	d := &definitions{informer: informDefinitions(objects, 0), stores: true}
	must(t, d.informer.SetTransform(withoutSchemas))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go d.run(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), d.informer.HasSynced) {
		t.Fatal("the definitions were not told of")
	}
	if crd := d.get(schema.GroupResource{Group: "example.com", Resource: "gadgets"}); crd == nil || crd.Spec.Versions[0].Schema != nil {
		t.Errorf("got %v", crd)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(calls, " "); !strings.HasPrefix(got, "list") {
		t.Errorf("calls: %s", got)
	}
}

// TestMissedDefinition: a definition whose event was lost is told of again.
func TestMissedDefinition(t *testing.T) {
	informer := informDefinitions(withGadgets(t).Build(), time.Second)
	seen := make(chan string, 1)
	if _, err := informer.AddEventHandler(listwatch.Handler("definitions", cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { panic("not understood") },
		UpdateFunc: func(_, obj any) {
			select {
			case seen <- obj.(*apiextensionsv1.CustomResourceDefinition).Name:
			default:
			}
		},
	})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go informer.RunWithContext(ctx)
	select {
	case name := <-seen:
		if name != "gadgets.example.com" {
			t.Errorf("told of %s", name)
		}
	case <-ctx.Done():
		t.Error("it was not told of again")
	}
}
