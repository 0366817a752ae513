package stock

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/stock/observed"
)

// ownWorld is an operator with one kube-apiserver, which stores widgets in v1; there are no widgets.
type ownWorld struct {
	*Own
	t     *testing.T
	clock *testclock.FakeClock
}

func newOwnWorld(t *testing.T) *ownWorld {
	return newAnsweringWorld(t, func(*testclock.FakeClock) {})
}

// newAnsweringWorld calls answering before the kube-apiserver answers. It does not answer for the versions in down.
func newAnsweringWorld(t *testing.T, answering func(*testclock.FakeClock), down ...schema.GroupVersion) *ownWorld {
	t.Helper()
	c := testclock.NewFakeClock(now)
	address := startDiscovery(t, func(http.ResponseWriter) bool {
		answering(c)
		return true
	}, down...)
	own, err := NewOwn(Config{
		Rest:     &rest.Config{Host: "https://" + address, TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		Instance: "operator", Settle: time.Minute, Clock: c,
	})
	must(t, err)
	own.observer.asking.Kube = fake.NewClientset(lease("a", address))
	own.objects = fakeclient.NewClientBuilder().WithScheme(own.objects.Scheme()).WithStatusSubresource(&apiextensionsv1.CustomResourceDefinition{}).
		WithIndex(&apiextensionsv1.CustomResourceDefinition{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).Build()
	return &ownWorld{Own: own, t: t, clock: c}
}

// is creates or updates the definition.
func (w *ownWorld) is(crd *apiextensionsv1.CustomResourceDefinition) {
	w.t.Helper()
	was, status := &apiextensionsv1.CustomResourceDefinition{}, crd.Status
	if w.objects.Get(w.t.Context(), client.ObjectKeyFromObject(crd), was) != nil {
		must(w.t, w.objects.Create(w.t.Context(), crd))
	} else {
		crd.ResourceVersion = was.ResourceVersion
		must(w.t, w.objects.Update(w.t.Context(), crd))
	}
	crd.Status = status
	must(w.t, w.objects.Status().Update(w.t.Context(), crd))
}

// step runs steps of the operator until it has to wait for something.
func (w *ownWorld) step() Standing {
	w.t.Helper()
	for {
		s := w.Step(w.t.Context(), "widgets.example.com", func(Standing) {})
		if s.Again != time.Nanosecond {
			return s
		}
	}
}

// pass lets time pass, in which the kube-apiserver is asked as by Watch.
func (w *ownWorld) pass(d time.Duration) {
	w.t.Helper()
	for ; d > 0; d -= w.config.Poll {
		w.clock.Step(min(d, w.config.Poll))
		w.ask(w.t.Context())
	}
}

// TestOwnFlipped: an operator asks nothing while a definition is done. A definition that was changed and changed back
// meanwhile has to settle again before its objects are migrated.
func TestOwnFlipped(t *testing.T) {
	w := newOwnWorld(t)
	for i, crd := range []*apiextensionsv1.CustomResourceDefinition{widgetDefinition("a", 2, "v1", "v2", "v1"), widgetDefinition("a", 4, "v1", "v1", "v2")} {
		w.is(crd)
		if s := w.step(); !observed.Settling(s.Why) {
			t.Fatalf("definition %d: %+v", i, s)
		}
		w.pass(time.Minute)
		if s := w.step(); !s.Done {
			t.Fatalf("definition %d, when it has settled: %+v", i, s)
		}
		must(t, w.objects.Get(t.Context(), client.ObjectKeyFromObject(crd), crd))
		if !slices.Equal(crd.Status.StoredVersions, []string{"v1"}) {
			t.Errorf("definition %d: storedVersions are %v", i, crd.Status.StoredVersions)
		}
		w.clock.Step(10 * time.Minute)
	}
}

// TestOwnAbsent: the operator says that a definition does not exist, and does not ask kube-apiservers about it. The
// definition may be created later.
func TestOwnAbsent(t *testing.T) {
	w := newOwnWorld(t)
	if s := w.step(); s.Done || s.Again != 0 || s.Why != "there is no CustomResourceDefinition of this name" || len(w.unfinished) > 0 {
		t.Errorf("%+v, asking about %v", s, w.unfinished)
	}
	w.is(widgetDefinition("a", 2, "v1", "v1"))
	if s := w.step(); !s.Done {
		t.Errorf("when there is one: %+v", s)
	}
}

// TestOwnNotServed: if a definition does not serve the version that it stores, the operator says so, migrates nothing
// and prunes nothing.
func TestOwnNotServed(t *testing.T) {
	w := newOwnWorld(t)
	w.is(storing("v2", false, true))
	for range 2 {
		s := w.step()
		if s.Done || s.Again != w.config.Poll || s.Why != "the definition stores example.com/v2, which it does not serve: serve it (served: true), or store another version" {
			t.Errorf("%+v", s)
		}
		w.pass(2 * time.Minute)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	must(t, w.objects.Get(t.Context(), client.ObjectKey{Name: "widgets.example.com"}, crd))
	if !slices.Equal(crd.Status.StoredVersions, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v", crd.Status.StoredVersions)
	}
}

// TestOwnWatches: a definition whose schema changes more often than the operator looks settles, and is done: the watch
// shows each of its states, so that the changes are not taken for a change of the storage version.
func TestOwnWatches(t *testing.T) {
	w := newOwnWorld(t)
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	go w.Watch(t.Context(), []string{"widgets.example.com"}, func(string) {})
	generation := int64(2)
	changes := func(versions ...string) { // the next storage versions of the definition, in order
		for _, v := range versions {
			generation++
			w.is(widgetDefinition("a", generation, v, "v2", "v1"))
		}
		must(t, wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			d := w.observer.definitions.of(widgets)
			return d != nil && d.Generation == generation, nil
		}))
	}
	changes() // returns when the watch has the definition
	w.step()
	for range 3 {
		w.clock.Step(20 * time.Second)
		changes("v1", "v1", "v1")
		if s := w.step(); s.Done != (generation == 11) {
			t.Errorf("generation %d: %+v", generation, s)
		}
	}
	w.clock.Step(10 * time.Minute)
	changes("v1", "v2", "v1")
	if s := w.step(); !observed.Settling(s.Why) {
		t.Errorf("after a flip: %+v", s)
	}
}

// TestOwnGap: a version has to settle again if kube-apiservers could not be asked while it settled. They are also
// asked during a long step, or a pause between steps.
func TestOwnGap(t *testing.T) {
	for name, down := range map[string]bool{"nobody is asked": true, "all are asked": false} {
		t.Run(name, func(t *testing.T) {
			w := newOwnWorld(t)
			w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
			w.step()
			var failing atomic.Bool
			w.observer.asking.Kube.(*fake.Clientset).PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return failing.Load(), nil, errors.New("etcd has no leader")
			})
			failing.Store(down)
			w.pass(time.Minute)
			failing.Store(false)
			if s := w.step(); s.Done == down || observed.Settling(s.Why) != down {
				t.Errorf("%+v", s)
			}
			w.pass(time.Minute)
			if s := w.step(); !s.Done || len(w.unfinished) > 0 {
				t.Errorf("at last: %+v, asking about %v", s, w.unfinished)
			}
		})
	}
}

// TestOwnUnreachable: if no kube-apiserver can be asked, the operator says why, in the same words each time, and that
// BestEffort does without, unless it is set.
func TestOwnUnreachable(t *testing.T) {
	for _, bestEffort := range []bool{false, true} {
		w := newOwnWorld(t)
		closed := httptest.NewServer(nil)
		closed.Close()
		w.observer.asking.Kube = fake.NewClientset(lease("a", closed.Listener.Addr().String()))
		w.config.Settings.BestEffort = bestEffort
		w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
		s := w.step()
		if !strings.HasPrefix(s.Why, "a does not answer at "+closed.Listener.Addr().String()) || !strings.Contains(s.Why, "refused") || strings.Contains(s.Why, "BestEffort") == bestEffort {
			t.Errorf("best effort %t: %+v", bestEffort, s)
		}
		w.pass(time.Minute)
		if again := w.step(); again != s {
			t.Errorf("first %+v, and a minute later %+v", s, again)
		}
	}
}

// TestOwnNoLease: without any identity Lease it says that, and not that the definition is not served.
func TestOwnNoLease(t *testing.T) {
	w := newOwnWorld(t)
	w.observer.asking.Kube = fake.NewClientset()
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	if s := w.step(); s.Why != "no kube-apiserver with a live identity Lease was found in the last round" {
		t.Errorf("%+v", s)
	}
}

// TestOwnNotServedYet: a definition that no kube-apiserver serves yet is not one about which none can be asked.
func TestOwnNotServedYet(t *testing.T) {
	w := newOwnWorld(t)
	gears := widgetDefinition("a", 2, "v1", "v2", "v1")
	gears.Name, gears.Spec.Names.Plural = "gears.example.com", "gears"
	w.is(gears)
	if s := w.Step(t.Context(), gears.Name, func(Standing) {}); s.Why != "no kube-apiserver serves it yet" {
		t.Errorf("%+v", s)
	}
}

// TestOwnHindered: a migration that waits for a conversion webhook says so meanwhile, once, and does not keep others from
// their steps.
func TestOwnHindered(t *testing.T) {
	w, s := newLateWorld(t, 3)
	var up atomic.Bool
	s.patched = func(int) error {
		if up.Load() {
			return nil
		}
		return apierrors.NewInternalError(errors.New("conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://hook\": dial tcp: connect: connection refused"))
	}
	told, ended := make(chan string, 100), make(chan Standing, 1)
	go func() {
		ended <- w.Step(t.Context(), "widgets.example.com", func(s Standing) { told <- s.Why })
	}()
	next := func(want string) {
		t.Helper()
		select {
		case why := <-told:
			if !strings.Contains(why, want) {
				t.Fatalf("it tells %q, and not %q", why, want)
			}
		case s := <-ended:
			t.Fatalf("it has ended: %+v", s)
		case <-time.After(time.Minute):
			t.Fatalf("it does not tell %q", want)
		}
	}
	next("are being migrated to example.com/v1")
	other := make(chan Standing, 1)
	go func() { other <- w.Step(t.Context(), "gears.example.com", func(Standing) {}) }()
	next("which does not get on: Internal error occurred: conversion webhook")
	select {
	case s := <-other:
		if s.Why != "there is no CustomResourceDefinition of this name" {
			t.Errorf("another one: %+v", s)
		}
	case s := <-ended:
		t.Fatalf("another one waits until it has ended: %+v", s)
	case <-time.After(time.Minute):
		t.Fatal("another one waits")
	}
	up.Store(true)
	next("are being migrated to example.com/v1")
	if s := <-ended; s.Why != "all objects are stored in example.com/v1" || len(told) > 0 {
		t.Errorf("at last %+v, and %d more are told", s, len(told))
	}
}

// TestOwnBound: the bound on objects per second is one of all definitions together.
func TestOwnBound(t *testing.T) {
	w := newOwnWorld(t)
	if a, b := w.migrator.options(widgetJob), w.migrator.options(widgetJob); a.Pacer != b.Pacer {
		t.Error("two migrations have a bound each")
	}
}

// TestOwnAsksAboutMany: however many definitions an operator has, and however slowly kube-apiservers answer, the time
// between two rounds does not count as a gap.
func TestOwnAsksAboutMany(t *testing.T) {
	var slow atomic.Bool
	w := newAnsweringWorld(t, func(c *testclock.FakeClock) {
		if slow.Load() {
			c.Step(30 * time.Second)
		}
	})
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	w.step()
	for _, other := range []string{"gadgets", "gears", "gizmos"} {
		w.asksAbout(schema.GroupResource{Group: widgets.Group, Resource: other}, true)
	}
	slow.Store(true)
	w.pass(time.Minute)
	slow.Store(false)
	if s := w.step(); !s.Done {
		t.Errorf("it has settled meanwhile: %+v", s)
	}
}

// TestOwnOtherGroup: if the discovery of another group does not answer, or that of a version that another program
// serves in the same group, definitions can be done. A definition waits only for its own versions.
func TestOwnOtherGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		down schema.GroupVersion
		done bool
	}{
		"another group":                         {schema.GroupVersion{Group: "other.com", Version: "v1"}, true},
		"a version that another program serves": {schema.GroupVersion{Group: widgets.Group, Version: "v1beta1"}, true},
		"a version of its own":                  {schema.GroupVersion{Group: widgets.Group, Version: "v2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAnsweringWorld(t, func(*testclock.FakeClock) {}, tc.down)
			w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
			w.step()
			w.asksAbout(schema.GroupResource{Group: "other.com", Resource: "gears"}, true)
			w.pass(time.Minute)
			if s := w.step(); s.Done != tc.done {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestOwnChangesInMigration: if the definition is changed while its objects are migrated, they are migrated once more
// only if another version may have been stored meanwhile, or if it is another definition.
func TestOwnChangesInMigration(t *testing.T) {
	for name, tc := range map[string]struct {
		then *apiextensionsv1.CustomResourceDefinition
		why  string // the reason begins with it; "" if it is done
	}{
		"nothing":                       {widgetDefinition("a", 2, "v1", "v2", "v1"), ""},
		"its schema":                    {widgetDefinition("a", 3, "v1", "v2", "v1"), ""},
		"its version, there and back":   {widgetDefinition("a", 4, "v1", "v2", "v1"), "all kube-apiservers store example.com/v1: until"},
		"its version, to one more, too": {widgetDefinition("a", 5, "v1", "v1", "v2", "v3"), "all kube-apiservers store example.com/v1: until"},
		"its version, and it stays so":  {widgetDefinition("a", 3, "v2", "v2", "v1"), "all store example.com/v1 still"},
		"it was deleted and made anew":  {widgetDefinition("b", 1, "v1", "v2", "v1"), "all objects are stored in example.com/v1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newOwnWorld(t)
			w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
			w.step()
			w.pass(time.Minute)
			if s := w.Step(t.Context(), tc.then.Name, func(Standing) {}); !strings.HasPrefix(s.Why, "all objects are stored in") {
				t.Fatalf("%+v", s)
			}
			if tc.then.UID != "a" {
				must(t, w.objects.Delete(t.Context(), widgetDefinition("a", 2, "v1")))
			}
			w.is(tc.then)
			if s := w.Step(t.Context(), tc.then.Name, func(Standing) {}); s.Done != (tc.why == "") || !strings.HasPrefix(s.Why, tc.why) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestOwnSlowAnswer: the time to settle begins when the kube-apiserver has answered, not when it was asked: until
// then, a request may have begun that writes another version.
func TestOwnSlowAnswer(t *testing.T) {
	var slow atomic.Bool
	slow.Store(true)
	w := newAnsweringWorld(t, func(c *testclock.FakeClock) {
		if slow.Swap(false) {
			c.Step(9 * time.Second)
		}
	})
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	w.step()
	w.pass(time.Minute - time.Second)
	if s := w.step(); !observed.Settling(s.Why) {
		t.Errorf("59 s after the answer: %+v", s)
	}
	w.clock.Step(time.Second)
	if s := w.step(); !s.Done {
		t.Errorf("a minute after it: %+v", s)
	}
}

// TestOwnFails: a step that fails, such as a migration in which an object cannot be written, says why and is repeated
// after longer and longer pauses. Only a change on which the step depends ends a pause.
func TestOwnFails(t *testing.T) {
	w := newOwnWorld(t)
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	w.step()
	w.pass(time.Minute)
	working, refused := w.objects, errors.New("storedVersions are guarded")
	refusing := interceptor.NewClient(working, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return refused
		},
	})
	fails := func(when string, again time.Duration, inRow int) {
		t.Helper()
		if s := w.step(); s.Again != again || s.Done || !strings.Contains(s.Why, refused.Error()) || w.of("widgets.example.com").failed.inRow != inRow {
			t.Errorf("%s: %+v, after failures %+v; want it to be tried again after %v, when %d have failed", when, s, w.of("widgets.example.com").failed, again, inRow)
		}
	}
	annotated := func(annotation, value string) {
		crd := widgetDefinition("a", 2, "v1", "v2", "v1")
		crd.Annotations = map[string]string{annotation: value}
		w.is(crd)
	}
	w.objects = refusing
	for i, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		fails("it is time", want, i+1)
		w.pass(want - 10*time.Second)
		fails("it is not time yet", 10*time.Second, i+1)
		w.objects = working
		annotated("example.com/seen", want.String())
		w.objects = refusing
		fails("an annotation tells nothing", 10*time.Second, i+1)
		w.pass(10 * time.Second)
	}
	fails("it is time", 80*time.Second, 4)
	w.objects = working
	annotated(observed.PruneAnnotation, "now")
	if s := w.step(); !s.Done || w.of("widgets.example.com").failed != (failure{}) {
		t.Errorf("at last: %+v, after failures %v", s, w.of("widgets.example.com").failed)
	}
}

// TestOwnElsewhere: a definition that concord controllers migrate is left to them as long as they run. An operator
// that may not read the StorageState migrates it itself.
func TestOwnElsewhere(t *testing.T) {
	const ours, none = "6923b1c0-observed-1.37", ""
	for name, test := range map[string]struct {
		age       time.Duration // age of the heartbeat
		uid       string
		forbidden bool
		left      bool
	}{
		"controllers are there":                 {4 * time.Minute, ours, false, true},
		"they were there":                       {11 * time.Minute, ours, false, false},
		"their clock is ahead a little":         {-9 * time.Minute, ours, false, true},
		"a clock was wrong":                     {-24 * time.Hour, ours, false, false},
		"kube-storage-version-migrator's":       {4 * time.Minute, none, false, false},
		"Concord servers' that have gone since": {4 * time.Minute, "9fe35e27-3a1c-4a5e-8f0b-0d8f1f0a7f11", false, false},
		"nobody is allowed to see":              {4 * time.Minute, ours, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newOwnWorld(t)
			w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
			state := &migrationv1alpha1.StorageState{}
			state.Name = migrationv1alpha1.StateName(widgets)
			state.Status = migrationv1alpha1.StorageStateStatus{LastHeartbeatTime: metav1.NewTime(now.Add(-test.age)),
				CurrentStorageVersionHash: "hash", PersistedStorageVersionHashes: []string{"hash"}}
			if test.uid != none {
				state.Status.StorageVersionUID, state.Status.Epoch = types.UID(test.uid), 1
				state.Status.CurrentEncoding, state.Status.PersistedEncodings = "example.com/v1", []string{"example.com/v1"}
			}
			must(t, w.objects.Create(t.Context(), state))
			if test.forbidden {
				w.objects = interceptor.NewClient(w.objects, interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
						if _, ok := obj.(*migrationv1alpha1.StorageState); ok {
							return apierrors.NewForbidden(schema.GroupResource{}, key.Name, errors.New("no role"))
						}
						return c.Get(ctx, key, obj, opts...)
					},
				})
			}
			if s := w.step(); strings.HasPrefix(s.Why, "concord controllers migrate it") != test.left || observed.Settling(s.Why) == test.left {
				t.Errorf("%+v", s)
			}
		})
	}
}
