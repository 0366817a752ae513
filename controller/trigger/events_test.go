package trigger

import (
	"context"
	"net/http"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// watching returns a run whose watches fill its queue from now on. It takes nothing from the queue by
// itself.
func watching(t *testing.T, c *Controller) *run {
	t.Helper()
	r := newRun(c)
	watched, sources := r.sources()
	r.cached = watched.of
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, len(sources))
	for _, source := range sources {
		go func() {
			source.RunWithContext(ctx)
			done <- struct{}{}
		}()
		if !cache.WaitForCacheSync(ctx.Done(), source.HasSynced) {
			t.Fatal("not synced")
		}
	}
	t.Cleanup(func() {
		cancel()
		r.queue.ShutDown()
		for range sources {
			<-done
		}
	})
	r.drain()
	return r
}

// next fails the test unless the queue's next resource is the wanted one.
func (r *run) next(t *testing.T, after string, want schema.GroupResource) {
	t.Helper()
	if got, _ := r.queue.Get(); got != want {
		t.Errorf("%s leads to a look at %s", after, got)
	}
}

func (r *run) drain() (all []schema.GroupResource) {
	for r.queue.Len() > 0 {
		gr, _ := r.queue.Get()
		r.queue.Done(gr)
		all = append(all, gr)
	}
	return all
}

// foreign creates an object of another resource. Its event comes after all earlier events of its kind,
// so that a test knows when these were handled.
func foreign(w *world, obj client.Object) schema.GroupResource {
	w.t.Helper()
	gr := schema.GroupResource{Group: "example.com", Resource: "sentinels"}
	switch o := obj.(type) {
	case *migrationv1alpha1.StorageState:
		o.Name, o.Spec.Resource = migrationv1alpha1.StateName(gr), migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	case *migrationv1alpha1.StorageVersionMigration:
		o.Name, o.Spec.Resource = "sentinel", migrationv1alpha1.GroupVersionResource{Group: gr.Group, Version: "v1", Resource: gr.Resource}
	}
	w.must(w.client.Create(context.Background(), obj))
	return gr
}

// TestHeartbeatCosts: for a heartbeat the trigger looks at the resource once, and the event of the
// heartbeat's own write does not make it look again.
func TestHeartbeatCosts(t *testing.T) {
	w, c := newMigrated(t)
	result := w.step(c)
	if want := evolve.UntilBeat(cronJobs, w.clock.Now()); result.After != want || len(result.Done) > 0 {
		t.Errorf("done %v, looks again after %s, want %s", result.Done, result.After, want)
	}
	before := w.state().Status.LastHeartbeatTime
	r := watching(t, c)
	w.clock.Step(evolve.UntilBeat(cronJobs, w.clock.Now()))
	w.Took()
	r.one(context.Background(), cronJobs)
	expect(t, []string{w.Took()}, "get StorageState; get StorageVersion; get CustomResourceDefinition; update status StorageState")
	if after := w.state().Status.LastHeartbeatTime; !before.Before(&after) {
		t.Fatalf("no heartbeat: it was %s and is %s", before, after)
	}
	r.next(t, "the heartbeat", foreign(w, &migrationv1alpha1.StorageState{}))
}

// TestProgressCosts: the progress that a migrator writes does not make the trigger look at the
// resource; the end of the migration does.
func TestProgressCosts(t *testing.T) {
	w, c := newMigrating(t)
	name := w.migrations()[0].Name
	w.end(name, migrationv1alpha1.MigrationRunning)
	r := watching(t, c)
	m := w.migrations()[0]
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 10, Done: 1}
	w.must(w.client.Status().Update(context.Background(), &m))
	r.next(t, "progress", foreign(w, &migrationv1alpha1.StorageVersionMigration{}))
	w.end(name, migrationv1alpha1.MigrationSucceeded)
	r.next(t, "the end of the migration", cronJobs)
}

// TestStateEvents: a change in the StorageState that a decision depends on makes the trigger look at
// the resource.
func TestStateEvents(t *testing.T) {
	w, c := newMigrating(t)
	r := watching(t, c)
	state := w.state()
	state.Status.PersistedEncodings = append(state.Status.PersistedEncodings, string(v2))
	state.Status.PersistedStorageVersionHashes = append(state.Status.PersistedStorageVersionHashes, hash(v2))
	w.must(w.client.Status().Update(context.Background(), state))
	r.next(t, "another encoding", cronJobs)
	r.queue.Done(cronJobs)
	w.must(w.client.Delete(context.Background(), state, client.Preconditions{UID: &state.UID}))
	r.next(t, "the deletion", cronJobs)
}

// TestStartedDuringTheLook: the trigger read the Lease of a server that was starting, and the server
// has started before the trigger has finished with the resource. The trigger looks at the resource
// again.
func TestStartedDuringTheLook(t *testing.T) {
	w, c := newMigrating(t)
	migration := w.migrations()[0]
	w.must(w.client.Delete(context.Background(), &migration, client.Preconditions{UID: &migration.UID}))
	w.lease("apiserver-1", false)
	r := newRun(c)
	defer r.queue.ShutDown()
	w.After = func(call string) error {
		if call == "list LeaseList" {
			r.serverChanged()
		}
		return nil
	}
	r.queue.Add(cronJobs)
	gr, _ := r.queue.Get()
	r.one(context.Background(), gr)
	r.queue.Done(gr)
	if len(w.migrations()) > 0 {
		t.Fatal("the look does not wait for the server")
	}
	if got := r.drain(); !slices.Equal(got, []schema.GroupResource{cronJobs}) {
		t.Errorf("queued %v, want another look", got)
	}
}

// TestUnservedIsUnknown: a 404 that does not name the object, such as one for the whole API group, does
// not mean that the object does not exist.
func TestUnservedIsUnknown(t *testing.T) {
	for _, kind := range []string{"StorageState", "StorageVersion", "CustomResourceDefinition"} {
		t.Run(kind, func(t *testing.T) {
			w, c := newWorld(t, kinds{})
			w.crd("v1", "v1")
			w.report(v1)
			w.settle(c)
			if kind == "CustomResourceDefinition" { // without the StorageVersion, since the StorageState would be deleted with the definition
				sv := w.storageVersion()
				w.must(w.client.Delete(context.Background(), sv, client.Preconditions{UID: &sv.UID}))
			}
			was, migrations := w.state(), len(w.migrations())
			w.Before = func(call string) error {
				if call != "get "+kind {
					return nil
				}
				return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Resource: "x"}, "x", "404 page not found", 0, true)
			}
			result, err := c.Step(context.Background(), cronJobs)
			if err == nil || changed(err) || len(result.Done) > 0 {
				t.Errorf("done %v, error %v", result.Done, err)
			}
			if is := w.state(); is == nil || is.ResourceVersion != was.ResourceVersion || len(w.migrations()) != migrations {
				t.Errorf("the state was %+v and is %+v, with %d migrations", was, is, len(w.migrations()))
			}
		})
	}
}

// TestDeletedState: a resource whose StorageState is deleted gets a new migration, also if the cache of
// migrations lags behind and still has the one that succeeded.
func TestDeletedState(t *testing.T) {
	w, c := newMigrated(t)
	old := w.migrations()[0]
	state := w.state()
	w.must(w.client.Delete(context.Background(), state, client.Preconditions{UID: &state.UID}))
	lagging := &lag{w.migrations()}
	cached := newController(c.cfg)
	cached.cached = lagging.of
	for range 3 {
		w.step(cached)
	}
	if w.state() != nil || len(w.migrations()) > 0 {
		t.Fatalf("state %v, migrations %v", w.state(), w.migrations())
	}
	lagging.items = nil
	w.settle(cached)
	if got := migrationv1alpha1.ViewState(w.state()); !got.Only(evolve.Unknown) || len(w.migrations()) != 1 || w.migrations()[0].UID == old.UID {
		t.Errorf("state %s, migrations %v", got, w.migrations())
	}
}

// TestForgedState: if somebody edits a hash in a StorageState, the trigger looks at the resource and
// has it migrated again; nothing that the StorageState says counts any more.
func TestForgedState(t *testing.T) {
	for name, forge := range map[string]func(*migrationv1alpha1.StorageStateStatus){
		"stored":  func(s *migrationv1alpha1.StorageStateStatus) { s.PersistedStorageVersionHashes[0] = "bogus" },
		"current": func(s *migrationv1alpha1.StorageStateStatus) { s.CurrentStorageVersionHash = "bogus" },
	} {
		t.Run(name, func(t *testing.T) {
			w, c := newMigrated(t)
			old := w.migrations()[0]
			r := watching(t, c)
			state := w.state()
			forge(&state.Status)
			w.must(w.client.Status().Update(context.Background(), state))
			r.next(t, "the edit", cronJobs)
			w.settle(c)
			if got := migrationv1alpha1.ViewState(w.state()); !got.Only(evolve.Unknown) || len(w.migrations()) != 1 || w.migrations()[0].UID == old.UID {
				t.Fatalf("state %s, migrations %v", got, w.migrations())
			}
			w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
			w.settle(c)
			if got := w.state().Status; len(got.PersistedStorageVersionHashes) != 1 || got.PersistedStorageVersionHashes[0] != hash(v1) || got.CurrentStorageVersionHash != hash(v1) {
				t.Errorf("state %+v", got)
			}
		})
	}
}

// lag is a cache of migrations that is never updated.
type lag struct {
	items []migrationv1alpha1.StorageVersionMigration
}

func (l *lag) of(schema.GroupResource) (all []*migrationv1alpha1.StorageVersionMigration, _ error) {
	for i := range l.items {
		all = append(all, &l.items[i])
	}
	return all, nil
}
