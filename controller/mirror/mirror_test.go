package mirror

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/listwatch/replay"
)

type (
	original = storagemigrationv1.StorageVersionMigration
	copied   = migrationv1alpha1.StorageVersionMigration
)

// world is a fake API that serves storagemigration.k8s.io in one version only.
type world struct {
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakeClock
	c      *Controller
}

func newWorld(t *testing.T, version string) *world {
	t.Helper()
	served := schema.GroupVersion{Group: storagemigrationv1.GroupName, Version: version}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(served, &original{}, &storagemigrationv1.StorageVersionMigrationList{})
	metav1.AddToGroupVersion(scheme, served)
	for _, add := range []func(*runtime.Scheme) error{migrationv1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&original{}, &copied{}, &apiextensionsv1.CustomResourceDefinition{}).
		WithInterceptorFuncs(interceptor.Funcs{Watch: replay.Watch}).Build()
	w.c = New(Config{Client: w.client, Served: served, Clock: w.clock})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) make(uid types.UID) {
	w.t.Helper()
	m := &original{Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: "crontabs"}}}
	m.Name, m.UID = "crontabs-migration", uid
	w.must(w.client.Create(context.Background(), m))
}

func (w *world) step() {
	w.t.Helper()
	w.clock.Step(time.Second)
	w.must(w.c.Step(context.Background(), "crontabs-migration"))
}

func (w *world) read() *original {
	w.t.Helper()
	m := &original{}
	w.must(w.client.Get(context.Background(), client.ObjectKey{Name: "crontabs-migration"}, m))
	return m
}

func (w *world) copies() []copied {
	w.t.Helper()
	var list migrationv1alpha1.StorageVersionMigrationList
	w.must(w.client.List(context.Background(), &list))
	return list.Items
}

// says sets a condition and the progress in the status of the copy.
func (w *world) says(t migrationv1alpha1.MigrationConditionType, reason string, progress *migrationv1alpha1.MigrationProgress) {
	w.t.Helper()
	m := w.copies()[0]
	migrationv1alpha1.SetCondition(&m, t, reason, "because", metav1.NewTime(w.clock.Now()))
	m.Status.Progress = progress
	w.must(w.client.Status().Update(context.Background(), &m))
}

// expectTrue asserts that this is the only condition with status True, and that all conditions have
// the fields that metav1.Condition requires.
func (w *world) expectTrue(t storagemigrationv1.MigrationConditionType, reason string, inMessage ...string) {
	w.t.Helper()
	var trues []string
	for _, c := range w.read().Status.Conditions {
		if c.Status == metav1.ConditionTrue {
			trues = append(trues, c.Type)
		}
		if c.LastTransitionTime.IsZero() || c.Reason == "" {
			w.t.Errorf("condition %+v lacks what metav1.Condition requires", c)
		}
	}
	c := meta.FindStatusCondition(w.read().Status.Conditions, string(t))
	if !slices.Equal(trues, []string{string(t)}) || c.Reason != reason {
		w.t.Fatalf("conditions %+v, want only %s because of %s", w.read().Status.Conditions, t, reason)
	}
	for _, part := range inMessage {
		if !strings.Contains(c.Message, part) {
			w.t.Errorf("message %q lacks %q", c.Message, part)
		}
	}
}

// TestLife: the original has the conditions of its copy, in each version of its API.
func TestLife(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, version)
			w.make("one-uid")
			w.step()
			copies := w.copies()
			if len(copies) != 1 || copies[0].Spec.Resource != (migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "crontabs"}) {
				t.Fatalf("copies %+v", copies)
			}
			if ref := copies[0].OwnerReferences[0]; ref.APIVersion != w.c.cfg.Served.String() || ref.UID != "one-uid" || ref.BlockOwnerDeletion != nil {
				t.Errorf("owner %+v", ref)
			}
			if m := &copies[0]; migrationv1alpha1.ViewMigration(m).Made || migrationv1alpha1.ViewMigration(m).Target.UID != "" {
				t.Error("the copy has to be adopted as a user's migration is")
			}
			w.step()
			// With a resourceVersion in the status, kube-controller-manager's migrator would begin.
			if c := meta.FindStatusCondition(w.read().Status.Conditions, string(storagemigrationv1.MigrationRunning)); w.read().Status.ResourceVersion != "" || c == nil || c.Status != metav1.ConditionFalse {
				t.Errorf("status %+v before anything began", w.read().Status)
			}

			waits := w.copies()[0]
			migrationv1alpha1.SetWaiting(&waits, "apiserver-x does not report", metav1.NewTime(w.clock.Now()))
			w.must(w.client.Status().Update(context.Background(), &waits))
			w.step()
			if c := meta.FindStatusCondition(w.read().Status.Conditions, string(storagemigrationv1.MigrationRunning)); c == nil || c.Status != metav1.ConditionFalse ||
				c.Reason != migrationv1alpha1.ReasonWaitingForAgreement || c.Message != "apiserver-x does not report" || w.read().Status.ResourceVersion != "" {
				t.Errorf("status %+v while it waits", w.read().Status)
			}

			w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, nil)
			began := w.copies()[0].ResourceVersion
			w.step()
			w.expectTrue(storagemigrationv1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
			w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, &migrationv1alpha1.MigrationProgress{Total: 10, Done: 4, Failed: 1})
			w.step()
			w.expectTrue(storagemigrationv1.MigrationRunning, migrationv1alpha1.ReasonRewriting, "4 of 10 objects", "1 cannot")
			w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused, nil)
			w.step()
			w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, nil)
			w.step()
			w.says(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, &migrationv1alpha1.MigrationProgress{Total: 10, Done: 10})
			w.step()
			w.expectTrue(storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, "because")
			if c := meta.FindStatusCondition(w.read().Status.Conditions, string(storagemigrationv1.MigrationRunning)); c.Status != metav1.ConditionFalse || !strings.HasPrefix(c.Message, "10 of 10 objects are done") {
				t.Errorf("condition %+v after the end", c)
			}
			if now := w.read().Status.ResourceVersion; now != began {
				t.Errorf("resourceVersion %s, was %s", now, began)
			}
			w.must(w.client.DeleteAllOf(context.Background(), &copied{}))
			w.step()
			if got := w.copies(); len(got) > 0 {
				t.Errorf("one that has ended is copied again: %+v", got)
			}
		})
	}
}

// migrating sets the condition StorageMigrating of the CustomResourceDefinition as
// kube-controller-manager's migrator does.
func (w *world) migrating(migration string) {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "crontabs.example.com"
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{
		Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionTrue, Reason: "MigrationRunning", Message: "Migration " + migration + " is running",
	}}
	w.must(w.client.Create(context.Background(), crd))
}

func (w *world) expectMigrating(want bool) {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	w.must(w.client.Get(context.Background(), client.ObjectKey{Name: "crontabs.example.com"}, crd))
	if got := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.StorageMigrating); got != want {
		w.t.Errorf("the definition says %+v", crd.Status.Conditions)
	}
}

// TestDefinitionComesToRest: the condition StorageMigrating of a CustomResourceDefinition is taken
// back when the migration has ended. kube-controller-manager's migrator does that only for migrations
// that it ended itself.
func TestDefinitionComesToRest(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		end  func(*world)
		want bool
	}{
		"ended":           {"crontabs-migration", func(w *world) { w.says(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, nil) }, false},
		"deleted":         {"crontabs-migration", func(w *world) { w.must(w.client.Delete(context.Background(), w.read())) }, false},
		"another one's":   {"another", func(w *world) { w.says(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, nil) }, true},
		"does not end":    {"crontabs-migration", func(*world) {}, true},
		"not yet cleaned": {"crontabs-migration", cleansUpLater, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v1")
			w.make("one-uid")
			w.migrating(test.says)
			w.step()
			w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, nil)
			w.step()
			test.end(w)
			w.step()
			w.step()
			w.expectMigrating(test.want)
		})
	}
}

// cleansUpLater sets a migration to Succeeded and leaves Running true, as kube-controller-manager's
// migrator does before it takes back the condition of the definition.
func cleansUpLater(w *world) {
	m := w.read()
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(storagemigrationv1.MigrationSucceeded), Status: metav1.ConditionTrue, Reason: "StorageVersionMigrationSucceeded"})
	w.must(w.client.Status().Update(context.Background(), m))
}

// TestManagerSucceeds: if kube-controller-manager's migrator began first, its success does not count: the copy, by which
// alone Concord's controllers count, waits on, and what users see stays as that migrator has written it.
func TestManagerSucceeds(t *testing.T) {
	w := newWorld(t, "v1")
	w.make("one-uid")
	m := w.read()
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(storagemigrationv1.MigrationRunning), Status: metav1.ConditionTrue, Reason: "StorageVersionMigrationInProgress"})
	w.must(w.client.Status().Update(context.Background(), m))
	w.step()
	waits := w.copies()[0]
	migrationv1alpha1.SetWaiting(&waits, "apiserver-x does not report", metav1.NewTime(w.clock.Now()))
	w.must(w.client.Status().Update(context.Background(), &waits))
	w.step()
	cleansUpLater(w)
	before := w.read()
	w.step()
	w.step()
	if now := w.copies(); len(now) != 1 || now[0].UID != waits.UID || now[0].ResourceVersion != waits.ResourceVersion || migrationv1alpha1.Waiting(&now[0]) == "" {
		t.Errorf("the copy is now %+v, was %+v", now, waits)
	}
	if now := w.read(); now.ResourceVersion != before.ResourceVersion || !ended(now) {
		t.Errorf("the original's status is %+v, was %+v", now.Status, before.Status)
	}
	w.must(w.client.DeleteAllOf(context.Background(), &copied{}))
	w.step()
	if now := w.copies(); len(now) > 0 {
		t.Errorf("one that kube-controller-manager has ended is copied: %+v", now)
	}
}

// TestFails: the original has the reason for which its copy failed.
func TestFails(t *testing.T) {
	w := newWorld(t, "v1")
	w.make("one-uid")
	w.step()
	w.says(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonResourceNotFound, nil)
	w.step()
	w.expectTrue(storagemigrationv1.MigrationFailed, migrationv1alpha1.ReasonResourceNotFound, "because")
	before := w.read().ResourceVersion
	w.step()
	if after := w.read().ResourceVersion; after != before {
		t.Error("a look at what has not changed writes")
	}
}

// TestDeletionCancels: the copy is deleted with its original, also if there is a new original of the
// same name. The migrations of other users stay.
func TestDeletionCancels(t *testing.T) {
	w := newWorld(t, "v1")
	other := &copied{}
	other.Name = "somebody-elses"
	w.must(w.client.Create(context.Background(), other))
	w.make("one-uid")
	w.step()
	w.must(w.client.Delete(context.Background(), w.read()))
	w.make("two-uid")
	w.step()
	var names []string
	for _, c := range w.copies() {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"crontabs-migration-two-uid", "somebody-elses"}) {
		t.Errorf("migrations %q after another took the place", names)
	}
	w.must(w.client.Delete(context.Background(), w.read()))
	w.step()
	if got := w.copies(); len(got) != 1 || got[0].Name != "somebody-elses" {
		t.Errorf("migrations %+v after the deletion", got)
	}
}

// TestCopyDeleted: a copy that somebody deletes is made again, and until then the original does not
// say that it is running.
func TestCopyDeleted(t *testing.T) {
	w := newWorld(t, "v1")
	w.make("one-uid")
	w.step()
	w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, nil)
	w.step()
	first := w.copies()[0]
	w.must(w.client.Delete(context.Background(), &first))
	w.step()
	w.step()
	if got := w.copies(); len(got) != 1 {
		t.Fatalf("copies %+v", got)
	}
	if c := meta.FindStatusCondition(w.read().Status.Conditions, string(storagemigrationv1.MigrationRunning)); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("conditions %+v", w.read().Status.Conditions)
	}
}

func TestLongNames(t *testing.T) {
	m := &original{}
	m.Name, m.UID = strings.Repeat("a.", 126)+"a", types.UID("628f6922-a9cb-4514-b076-12d3c178967c")
	if name := copyName(m); len(name) > maxName || !strings.HasSuffix(name, "a-"+string(m.UID)) {
		t.Errorf("copy %q has %d characters", name, len(name))
	}
}

// TestMayNot: nothing is written for a migration that is left to another migrator. A migration that
// the mirror has begun before is followed to its end.
func TestMayNot(t *testing.T) {
	w := newWorld(t, "v1")
	may := ErrLeft
	w.c.cfg.May = func(context.Context) error { return may }
	w.make("one-uid")
	if err := w.c.Step(context.Background(), "crontabs-migration"); !errors.Is(err, ErrLeft) {
		t.Errorf("error %v", err)
	}
	if m := w.read(); len(w.copies()) > 0 || len(m.Status.Conditions) > 0 {
		t.Errorf("copies %+v, status %+v", w.copies(), m.Status)
	}
	may = nil
	w.step()
	may = ErrLeft
	w.must(w.client.DeleteAllOf(context.Background(), &copied{}))
	w.step()
	if len(w.copies()) != 1 {
		t.Fatal("one that was taken has no copy, and nobody else does it")
	}
	w.says(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, nil)
	w.step()
	w.expectTrue(storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
}

// run runs the controller until the test ends.
func (w *world) run() {
	ctx := w.t.Context() // is cancelled before the cleanup functions run
	var running sync.WaitGroup
	running.Go(func() { w.c.Run(ctx) })
	w.t.Cleanup(running.Wait)
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 2*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		w.t.Fatal("not in time: " + what)
	}
}

// TestRunLeft: the controller tries again with a migration that it left to another migrator.
func TestRunLeft(t *testing.T) {
	w := newWorld(t, "v1")
	var asked atomic.Int64
	var allowed atomic.Bool
	w.c.cfg.May = func(context.Context) error {
		asked.Add(1)
		if !allowed.Load() {
			return ErrLeft
		}
		return nil
	}
	w.run()
	w.make("one-uid")
	step := func(what string, condition func() bool) {
		t.Helper()
		w.eventually(what, func() bool {
			if w.clock.HasWaiters() {
				w.clock.Step(time.Second)
			}
			return condition()
		})
	}
	step("three looks", func() bool { return asked.Load() >= 3 })
	if got := w.copies(); len(got) > 0 {
		t.Errorf("copies %+v", got)
	}
	allowed.Store(true)
	step("the copy", func() bool { return len(w.copies()) == 1 })
}

// TestRun: with its watches alone, the controller makes copies and follows them to their end.
func TestRun(t *testing.T) {
	w := newWorld(t, "v1")
	w.run()
	w.make("one-uid")
	w.eventually("the copy", func() bool { return len(w.copies()) == 1 })
	w.says(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, nil)
	w.eventually("the resourceVersion", func() bool { return w.read().Status.ResourceVersion != "" })
	w.says(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, nil)
	w.eventually("the end", func() bool { return ended(w.read()) })
	w.must(w.client.Delete(context.Background(), w.read()))
	w.eventually("the copy's end", func() bool { return len(w.copies()) == 0 })
}
