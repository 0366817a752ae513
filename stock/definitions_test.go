package stock

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/stock/observed"
)

// definedIn returns a builder of a client whose API has CustomResourceDefinitions, and what others add.
func definedIn(t *testing.T, others ...func(*runtime.Scheme) error) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range append(others, apiextensionsv1.AddToScheme) {
		must(t, add(scheme))
	}
	return fake.NewClientBuilder().WithScheme(scheme)
}

// widgetDefinition returns a CRD with v1 and v2 that stores one of them.
func widgetDefinition(uid types.UID, generation int64, storage string, storedVersions ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: uid, Generation: generation}}
	crd.Spec.Group, crd.Spec.Names.Plural = "example.com", "widgets"
	for _, v := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Served: true, Storage: v == storage})
	}
	crd.Status.StoredVersions = storedVersions
	return crd
}

func TestChanges(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	was := widgetDefinition("a", 4, "v1", "v1")
	for name, test := range map[string]struct {
		is   *apiextensionsv1.CustomResourceDefinition
		want []agree.Encoding
	}{
		"the status alone":                        {widgetDefinition("a", 4, "v1", "v1", "v2"), nil},
		"another part of the spec":                {widgetDefinition("a", 5, "v1", "v1", "v2"), nil},
		"flipped":                                 {widgetDefinition("a", 5, "v2", "v1", "v2"), []agree.Encoding{v2}},
		"flipped and back, unseen":                {widgetDefinition("a", 6, "v1", "v1", "v2"), []agree.Encoding{v2, v1}},
		"flipped with more changes, unseen":       {widgetDefinition("a", 7, "v2", "v1", "v2"), []agree.Encoding{v1, v2}},
		"changes unseen, of other parts":          {widgetDefinition("a", 9, "v1", "v1"), nil},
		"made anew":                               {widgetDefinition("b", 1, "v1", "v1"), []agree.Encoding{v1}},
		"made anew, flipped and back, all unseen": {widgetDefinition("b", 3, "v1", "v1", "v2"), []agree.Encoding{v2, v1}},
	} {
		if got := changes(was, test.is); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestDefinitionNotServed: a version that is served in the spec is not served while the definition is not established.
func TestDefinitionNotServed(t *testing.T) {
	for name, test := range map[string]struct{ served, established, want bool }{
		"served":                          {true, true, false},
		"not served":                      {false, true, true},
		"not served, and not established": {false, false, false},
	} {
		d := newDefinitions()
		d.take(storing("v2", test.served, test.established))
		if got := d.defined(widgets)[widgets].NotServed; got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// storing returns a CRD that stores a version, which it serves or not.
func storing(version string, served, established bool) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetDefinition("a", 2, version, "v1", version)
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Served = served || !crd.Spec.Versions[i].Storage
	}
	if established {
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	}
	return crd
}

// TestDefinitionsListedAnew: after an API server was restarted, a watch may have to begin with a new list of
// definitions, so that changes in between have no events. No version that was stored in between is missed.
func TestDefinitionsListedAnew(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	c := interceptor.NewClient(definedIn(t).WithObjects(widgetDefinition("a", 1, "v1", "v1")).Build(), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			return nil, apierrors.NewResourceExpired("too old resource version")
		},
	})
	d := watchDefinitions(c, func(schema.GroupResource) {}, func(*apiextensionsv1.CustomResourceDefinition) {})
	go d.run(t.Context())
	said := func(what string, condition func([]agree.Encoding) bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
			return d.source.HasSynced() && condition(d.defined(widgets)[widgets].Said), nil
		})
		if err != nil {
			t.Fatalf("%s: not in time: %+v", what, d.defined(widgets))
		}
	}
	replace := func(crd *apiextensionsv1.CustomResourceDefinition) {
		t.Helper()
		was := &apiextensionsv1.CustomResourceDefinition{}
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(crd), was))
		was.Status = crd.Status // an API server changes both at once
		must(t, c.Status().Update(t.Context(), was))
		crd.ResourceVersion = was.ResourceVersion
		must(t, c.Update(t.Context(), crd))
	}
	said("before", func(said []agree.Encoding) bool { return len(said) == 0 })
	replace(widgetDefinition("a", 3, "v1", "v1", "v2"))
	said("v1, v2, v1", func(said []agree.Encoding) bool { return slices.Equal(said, []agree.Encoding{v2, v1}) })
	d.heard(d.defined())
	must(t, c.Delete(t.Context(), widgetDefinition("a", 3, "v1")))
	said("gone", func([]agree.Encoding) bool { return d.of(widgets) == nil })
	must(t, c.Create(t.Context(), widgetDefinition("b", 1, "v2", "v2")))
	said("made anew", func(said []agree.Encoding) bool { return slices.Equal(said, []agree.Encoding{v2}) })
}

// TestDefinitionsInPages: only the definitions of one page are in memory with their schemas, also while all are listed.
func TestDefinitionsInPages(t *testing.T) {
	const all = 25
	var listed []*apiextensionsv1.CustomResourceDefinition
	c := interceptor.NewClient(definedIn(t).Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(options)
			if asked := o.AsListOptions(); asked.ResourceVersion != "" || asked.Limit <= 0 {
				t.Errorf("kube-apiserver answers this list with everything at once: %+v", asked)
			}
			for _, crd := range listed {
				if crd.Spec.Versions[0].Schema != nil || len(crd.Annotations) > 0 {
					t.Errorf("%s is in memory as it was read while the next page is", crd.Name)
				}
			}
			page := list.(*apiextensionsv1.CustomResourceDefinitionList)
			for i := len(listed); i < min(len(listed)+int(o.Limit), all); i++ {
				crd := widgetDefinition("a", 1, "v1", "v1")
				crd.Name, crd.Spec.Names.Plural = fmt.Sprintf("w%d.example.com", i), fmt.Sprintf("w%d", i)
				crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{}
				crd.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "all of it"}
				page.Items = append(page.Items, *crd)
			}
			for i := range page.Items {
				listed = append(listed, &page.Items[i])
			}
			page.ResourceVersion = "7"
			if page.Continue = ""; len(listed) < all {
				page.Continue = "the rest"
			}
			return nil
		},
	})
	d := watchDefinitions(c, func(schema.GroupResource) {}, func(*apiextensionsv1.CustomResourceDefinition) {})
	go d.run(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), d.source.HasSynced) || len(d.all()) != all {
		t.Errorf("%d of %d are known", len(d.all()), all)
	}
}

// TestDefinitionChanges: only changes of a definition that matter are told, since each of them leads to requests to all
// kube-apiservers about everything.
func TestDefinitionChanges(t *testing.T) {
	watching := make(chan struct{})
	c := interceptor.NewClient(definedIn(t).WithObjects(widgetDefinition("a", 1, "v1", "v1")).Build(), interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			defer close(watching) // the fake client does not send earlier changes
			return c.Watch(ctx, list, options...)
		},
	})
	events := make(chan string, 100)
	d := watchDefinitions(c, func(schema.GroupResource) { events <- "told" }, func(*apiextensionsv1.CustomResourceDefinition) { events <- "is so" })
	go d.run(t.Context())
	next := func() string {
		t.Helper()
		select {
		case event := <-events:
			return event
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is told in time")
			return ""
		}
	}
	if first, second := next(), next(); first != "is so" || second != "told" {
		t.Fatalf("at first: %s, %s", first, second)
	}
	<-watching
	pending := "" // the last change; the event of the next one comes after its events
	for _, tc := range []struct {
		name   string
		change func(*apiextensionsv1.CustomResourceDefinition)
		told   bool
	}{
		{"an annotation", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Annotations = map[string]string{"example.com/seen": "1"}
		}, false},
		{"a label", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Labels = map[string]string{"example.com/seen": "1"}
		}, false},
		{"a condition", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue}}
		}, false},
		{"Established", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
		}, true},
		{"storedVersions", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Status.StoredVersions = []string{"v1", "v2"} }, true},
		{"the spec", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Generation++ }, true},
		{"a hold", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Annotations[migrationv1alpha1.HoldAnnotation] = "true"
		}, true},
		{"when to prune", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Annotations[observed.PruneAnnotation] = "never"
		}, true},
		{"another one of this name", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.UID = "b" }, true},
		{"an annotation again", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Annotations["example.com/seen"] = "2" }, false},
		{"the last change", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Generation++ }, true},
	} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		must(t, c.Get(t.Context(), client.ObjectKey{Name: "widgets.example.com"}, crd))
		status := crd.DeepCopy().Status
		if tc.change(crd); reflect.DeepEqual(status, crd.Status) {
			must(t, c.Update(t.Context(), crd))
		} else {
			must(t, c.Status().Update(t.Context(), crd))
		}
		if got := next(); got != "is so" {
			t.Fatalf("%s: %s is told, though nobody goes by it", pending, got)
		}
		if pending = tc.name; tc.told && next() != "told" {
			t.Errorf("%s: nobody is told", tc.name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDefinitionRead: the definition that the trigger reads before it prunes counts in the next observation, before its
// watch event comes and after it.
func TestDefinitionRead(t *testing.T) {
	c := definedIn(t).WithObjects(widgetDefinition("a", 3, "v1", "v1", "v2")).Build()
	o := &observer{definitions: newDefinitions()}
	before := widgetDefinition("a", 1, "v1", "v1")
	before.ResourceVersion = "1"
	o.definitions.note(before, true, false)
	var crd apiextensionsv1.CustomResourceDefinition
	must(t, viewOf(c, o, "").Get(t.Context(), client.ObjectKey{Name: "widgets.example.com"}, &crd))
	for _, when := range []string{"read", "told of"} {
		want := []agree.Encoding{"example.com/v2", "example.com/v1"}
		if got := o.definitions.defined(widgets)[widgets]; !slices.Equal(got.Said, want) || len(got.Stored) != 2 {
			t.Errorf("%s: %+v", when, got)
		}
		o.definitions.note(before, false, false)
		o.definitions.note(&crd, false, false)
	}
}

// TestDefinitionGoneMeanwhile: a definition that is deleted, or made again, while kube-apiservers are asked is not mixed
// up with the earlier one; an old state of it that is read late does not bring it back.
func TestDefinitionGoneMeanwhile(t *testing.T) {
	revised := func(revision string, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
		crd.ResourceVersion = revision
		return crd
	}
	d := newDefinitions()
	first := revised("5", widgetDefinition("a", 2, "v1", "v1", "v2"))
	d.note(first, false, false)
	asked := d.defined()
	d.forget(first)
	d.note(revised("4", first), false, false)
	if got := d.of(widgets); got != nil {
		t.Errorf("it is back: %+v", got)
	}
	d.note(revised("7", widgetDefinition("b", 1, "v2", "v2")), false, false)
	d.heard(asked)
	if got := d.defined(widgets)[widgets].Said; !slices.Equal(got, []agree.Encoding{"example.com/v2"}) {
		t.Errorf("the new one says to store %v", got)
	}
	d.heard(d.defined(widgets))
	d.note(revised("3", widgetDefinition("b", 3, "v1", "v1", "v2")), false, false)
	if got := d.defined(widgets)[widgets]; len(got.Said) > 0 || got.Stores != "example.com/v2" {
		t.Errorf("an older one counts: %+v", got)
	}
	d.note(revised("3", widgetDefinition("b", 3, "v1", "v1", "v2")), false, true)
	if got := d.defined(widgets)[widgets].Said; !slices.Equal(got, []agree.Encoding{"example.com/v2", "example.com/v1"}) {
		t.Errorf("after etcd was restored it says to store %v", got)
	}
}
