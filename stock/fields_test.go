package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	migrateapi "github.com/concord-dev/concord/migrate/api"
)

// fieldsWorld is a cluster with widgets, of which v1 is not served any more.
type fieldsWorld struct {
	*widgetServers
	fields *fields
	clock  *testclock.FakeClock
	turns  atomic.Int64
}

func newFieldsWorld(t *testing.T, objects int) *fieldsWorld {
	t.Helper()
	w := &fieldsWorld{widgetServers: startWidgets(t, objects, "v2"), clock: testclock.NewFakeClock(now)}
	for _, o := range w.objects {
		o.fields = []metav1.ManagedFieldsEntry{{Manager: "new", APIVersion: "example.com/v2"}, {Manager: "old", APIVersion: "example.com/v1"}}
	}
	crd := widgetDefinition("uid", 0, "v2")
	crd.Spec.Versions[0].Served = false
	definitions := newDefinitions()
	definitions.take(crd)
	scheme := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(scheme), migrationv1alpha1.AddToScheme(scheme)))
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: migrationv1alpha1.StateName(widgets)}}
	var err error
	w.fields, err = newFields(Config{Rest: w.config(), Instance: "test", Clock: w.clock}, fake.NewClientBuilder().WithScheme(scheme).WithObjects(state).Build(), definitions)
	must(t, err)
	w.fields.turn = func(context.Context) error {
		w.turns.Add(1)
		return nil
	}
	return w
}

// old returns the numbers of the objects with an entry of v1 in managedFields.
func (w *fieldsWorld) old() (old []int) {
	for i, o := range w.objects {
		if slices.ContainsFunc(o.fields, func(e metav1.ManagedFieldsEntry) bool { return e.APIVersion == "example.com/v1" }) {
			old = append(old, i)
		}
	}
	return old
}

// events returns the messages of the Events about the definition.
func (w *fieldsWorld) events() (notes []string) {
	w.t.Helper()
	list := &corev1.EventList{}
	must(w.t, w.fields.objects.List(w.t.Context(), list))
	for _, e := range list.Items {
		if e.Reason != migrationv1alpha1.ReasonFieldsNotCleaned || e.InvolvedObject.Name != widgets.String() || e.Type != corev1.EventTypeWarning {
			w.t.Errorf("the event is %+v", e)
		}
		notes = append(notes, e.Message)
	}
	return notes
}

// done says whether the StorageState says that all objects were looked through.
func (w *fieldsWorld) done() bool {
	w.t.Helper()
	state := &migrationv1alpha1.StorageState{}
	must(w.t, w.fields.objects.Get(w.t.Context(), client.ObjectKey{Name: migrationv1alpha1.StateName(widgets)}, state))
	return state.Annotations[fieldsAnnotation] == "v2"
}

// TestFieldsOfBadObjects: objects that cannot be written are told in an Event and do not keep others from
// being cleaned. The log names each of them once for each kind of error. They are tried again after longer and longer pauses, without any request in between.
func TestFieldsOfBadObjects(t *testing.T) {
	const objects, bad = 20, 7
	w := newFieldsWorld(t, objects)
	w.patched = func(i int) error {
		if i < bad {
			return apierrors.NewForbidden(widgets, widgetName(i), errors.New("the policy says no"))
		}
		return nil
	}
	var mu sync.Mutex
	var log []string
	w.fields.logger = funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, args)
	}, funcr.Options{})
	w.fields.look(t.Context())
	if old := w.old(); len(old) != bad || old[bad-1] != bad-1 {
		t.Errorf("entries are left in %v", old)
	}
	logged := func(reasons ...string) {
		t.Helper()
		for i := range objects {
			named := slices.DeleteFunc(slices.Clone(log), func(line string) bool { return !strings.Contains(line, fmt.Sprintf(`"name"=%q`, widgetName(i))) })
			told := len(named) == len(reasons)
			for j := range named {
				told = told && strings.Contains(named[j], reasons[j])
			}
			if i < bad && !told || i >= bad && len(named) > 0 {
				t.Errorf("of %s it is logged: %q", widgetName(i), named)
			}
		}
	}
	logged("the policy says no")
	notes := w.events()
	if len(notes) != 1 || !strings.Contains(notes[0], "7 objects cannot be written: default/w00000 (") || !strings.Contains(notes[0], "the policy says no") || !strings.HasSuffix(notes[0], "; and 2 more") {
		t.Errorf("the events are %q", notes)
	}
	if w.patches != objects || int(w.turns.Load()) != objects {
		t.Errorf("%d patches in %d turns", w.patches, w.turns.Load())
	}
	// There is a look every ten seconds; in an hour, only a few of them send requests.
	before := w.lists
	for range 360 {
		w.clock.Step(fieldsPeriod)
		w.fields.look(t.Context())
	}
	if lists := w.lists - before; lists < 5 || lists > 12 {
		t.Errorf("%d lists in an hour", lists)
	}
	logged("the policy says no")
	w.patched = func(i int) error {
		if i < bad {
			return apierrors.NewInternalError(errors.New("the webhook hangs"))
		}
		return nil
	}
	for range 2 {
		w.clock.Step(time.Hour)
		w.fields.look(t.Context())
	}
	logged("the policy says no", "the webhook hangs")
	if w.done() {
		t.Error("it counts as done")
	}
	w.patched = nil
	w.clock.Step(time.Hour)
	w.fields.look(t.Context())
	if old := w.old(); len(old) != 0 || !w.done() {
		t.Errorf("entries are left in %v, done is %t", old, w.done())
	}
}

// TestFieldsExpired: a list whose continue token has expired goes on with a new token, or begins again; an object that
// cannot be written is told once.
func TestFieldsExpired(t *testing.T) {
	for _, goOn := range []string{"", fmt.Sprint(migrateapi.FirstPage, "-fresh")} {
		w := newFieldsWorld(t, pageSize+10)
		times := 0
		w.listed = func(from int) error {
			if times++; from == 0 || times > 2 {
				return nil
			}
			return tooOld(goOn)
		}
		w.patched = func(i int) error {
			if i == 0 {
				return apierrors.NewForbidden(widgets, widgetName(i), errors.New("the policy says no"))
			}
			return nil
		}
		w.fields.look(t.Context())
		if old, notes := w.old(), w.events(); len(old) != 1 || len(notes) != 1 || !strings.Contains(notes[0], "1 objects cannot be written: default/w00000 (") {
			t.Errorf("after %q %d have entries still, the events are %q", goOn, len(old), notes)
		}
	}
}

// TestFieldsNotServed: if the stored version is not served, no object is written in another one, and an
// Event says what to do. When that is done, it is tried again at once.
func TestFieldsNotServed(t *testing.T) {
	w := newFieldsWorld(t, 5)
	crd := w.fields.definitions.of(widgets).DeepCopy()
	crd.Spec.Versions[0].Served, crd.Spec.Versions[1].Served = true, false
	w.fields.definitions.take(crd)
	w.fields.look(t.Context())
	if notes := w.events(); len(w.asked) > 0 || w.done() || len(notes) != 1 || !strings.Contains(notes[0], "version v2, which is stored, is not served: serve it") {
		t.Errorf("the events are %q, the requests %v", notes, w.asked)
	}
	crd = crd.DeepCopy()
	crd.Spec.Versions[0].Served, crd.Spec.Versions[1].Served = false, true
	w.fields.definitions.take(crd)
	if w.fields.look(t.Context()); !w.done() {
		t.Error("it is put off")
	}
}

// TestFieldsOfGoneNamespace: an object that no update reaches, since a webhook asks for the labels of a namespace that is gone,
// does not count as gone.
func TestFieldsOfGoneNamespace(t *testing.T) {
	w := newFieldsWorld(t, 3)
	w.patched = func(i int) error {
		if i == 0 {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x")
		}
		return nil
	}
	w.fields.look(t.Context())
	if notes := w.events(); len(notes) != 1 || !strings.Contains(notes[0], `namespaces "x" not found`) || w.done() {
		t.Errorf("the events are %q, done is %t", notes, w.done())
	}
}

// TestFieldsOff: if managedFields are not to be cleaned, nothing does that.
func TestFieldsOff(t *testing.T) {
	for _, on := range []bool{true, false} {
		c, err := newControllers(Config{Rest: &rest.Config{Host: "127.0.0.1:1"}, Instance: "x", CleanFields: on})
		must(t, err)
		c.objects = newFieldsWorld(t, 0).fields.objects
		w, err := c.newWork(t.Context())
		must(t, err)
		if w.observer.broadcast.Shutdown(); (w.fields != nil) != on {
			t.Errorf("it is to be done: %t; it is: %t", on, !on)
		}
	}
}
