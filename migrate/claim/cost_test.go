package claim

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// runs starts the controller, which ends with the test.
func runs(t *testing.T, w *world) {
	t.Helper()
	ctx := t.Context() // is cancelled before the cleanup functions run
	var running sync.WaitGroup
	running.Go(func() { w.c.Run(ctx) })
	t.Cleanup(running.Wait)
}

func (w *world) called() []string {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	return slices.Clone(w.Calls)
}

func (w *world) uncall() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Calls = nil
}

// calledUntil returns the calls up to the n-th of that name.
func (w *world) calledUntil(call string, n int) []string {
	calls := w.called()
	for i, c := range calls {
		if c == call {
			if n--; n == 0 {
				return calls[:i+1]
			}
		}
	}
	return nil
}

// TestRunsAtOnce: a migration begins because of its watch event alone, without a pause, and the
// Running condition is written by the sixth call.
func TestRunsAtOnce(t *testing.T) {
	w := newWorld(t)
	runs(t, w)
	w.migration(func(m *migrationv1alpha1.StorageVersionMigration) { m.Name, m.UID = "first", "first-uid" })
	const status = "update status StorageVersionMigration"
	w.Eventually("succeeded", func() bool { return w.calledUntil(status, 2) != nil }) // of Running and of Succeeded
	// No migration waits for the watch of StorageVersions.
	w.Eventually("the watch of StorageVersions begins", func() bool { return slices.Contains(w.called(), "list StorageVersionList") })
	w.uncall()
	w.migration(nil)
	w.Eventually("succeeded", func() bool { return w.calledUntil(status, 2) != nil })
	if got := w.calledUntil(status, 2); !slices.Equal(got, wholeMigration) {
		t.Errorf("calls %q, want %q", got, wholeMigration)
	}
}

// TestOthersWorkCostsNothing: while another server migrates, its writes to the migration do not
// make this server list Leases, and neither does the end.
func TestOthersWorkCostsNothing(t *testing.T) {
	w := newWorld(t)
	w.c.cfg.Workers = 1
	w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(other)
	})
	runs(t, w)
	w.Eventually("looked at", func() bool { return slices.Contains(w.called(), "list LeaseList") })
	// An event of another migration is handled after all earlier events of the same watch.
	next := func(name string) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) { m.Name, m.UID = name, "uid-"+m.UID })
		w.Eventually(name, func() bool {
			m, err := w.c.get(context.Background(), name)
			return err == nil && migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil
		})
	}
	next("warm")
	looks := func() (n int) {
		for _, c := range w.called() {
			if c == "list LeaseList" {
				n++
			}
		}
		return n
	}
	before := looks()
	m := w.read()
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, "Test", "", metav1.Now())
	w.must(w.client.Status().Update(context.Background(), m))
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 10, Done: 5}
	w.must(w.client.Status().Update(context.Background(), m))
	next("after-progress")
	if got := looks() - before; got != 1 {
		t.Errorf("%d looks, want the one at another migration", got)
	}
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationSucceeded, "Test", "", metav1.Now())
	w.must(w.client.Status().Update(context.Background(), m))
	before = looks()
	next("after-end")
	if got := looks() - before; got != 1 {
		t.Errorf("%d looks after the end, want the one at another migration", got)
	}
}

// TestPollsOfTheEndedCostNothing: the poll does not read migrations that the watch has shown as
// deleted or ended.
func TestPollsOfTheEndedCostNothing(t *testing.T) {
	w := newMigrating(t)
	ended := w.read()
	migrationv1alpha1.SetCondition(ended, migrationv1alpha1.MigrationFailed, "Test", "", metav1.Now())
	seen := cache.NewStore(cache.MetaNamespaceKeyFunc)
	w.must(seen.Add(ended))
	w.uncall()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	queue.Add("m")
	queue.Add("gone")
	queue.ShutDown()
	for w.c.next(context.Background(), queue, seen) {
	}
	if got := w.called(); len(got) > 0 {
		t.Errorf("calls %q", got)
	}
}

func TestWorthALook(t *testing.T) {
	made := func(change func(*migrationv1alpha1.StorageVersionMigration)) *migrationv1alpha1.StorageVersionMigration {
		m := &migrationv1alpha1.StorageVersionMigration{}
		m.UID = "u"
		change(m)
		return m
	}
	target := evolve.Target{Ref: evolve.Ref{UID: "sv-uid", Epoch: 1}, Encoding: v1}
	plain := made(func(m *migrationv1alpha1.StorageVersionMigration) { migrationv1alpha1.SetTarget(m, target) })
	claimed := func(by agree.ServerID) *migrationv1alpha1.StorageVersionMigration {
		m := plain.DeepCopy()
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(by)
		return m
	}
	ended := claimed(self)
	migrationv1alpha1.SetCondition(ended, migrationv1alpha1.MigrationFailed, "Test", "", metav1.Now())
	for name, test := range map[string]struct {
		was, is *migrationv1alpha1.StorageVersionMigration
		want    bool
	}{
		"new":    {nil, plain, true},
		"same":   {plain, plain, false},
		"target": {made(func(*migrationv1alpha1.StorageVersionMigration) {}), plain, true},
		"another": {plain, made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.UID = "v"
			migrationv1alpha1.SetTarget(m, target)
		}), true},
		"claimed by another":                 {plain, claimed(other), true},
		"claimed by itself":                  {plain, claimed(self), false},
		"released":                           {claimed(other), plain, true},
		"restored, as it was before its end": {ended, claimed(self), true},
		"ended":                              {plain, ended, false},
	} {
		if got := worthALook(test.was, test.is, self); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestUnservedIsUnknown: a 404 that does not name the object does not end a migration.
func TestUnservedIsUnknown(t *testing.T) {
	for _, kind := range []string{"StorageVersionMigration", "StorageVersion", "CustomResourceDefinition"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 1)
			w.migration(nil)
			unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Resource: "x"}, "x", "404 page not found", 0, true)
			broken := map[string]error{"get " + kind: unserved}
			if kind == "StorageVersionMigration" {
				w.broken = broken
			}
			w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
				w.broken = broken
				return Result{}, nil
			}
			if _, err := step(w); !apierrors.IsNotFound(err) {
				t.Errorf("error %v, want the 404", err)
			}
			w.broken = nil
			if m := w.read(); migrationv1alpha1.Final(m) {
				t.Errorf("ended: %+v", m.Status.Conditions)
			}
		})
	}
}
