package trigger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

var served = kinds{cronJobs: "CronJob"}

func hash(e agree.Encoding) string {
	gv, _ := schema.ParseGroupVersion(string(e))
	return migrationv1alpha1.StorageVersionHash(gv.WithKind("CronJob"))
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// TestLife follows one resource from its first report through a change of encoding.
func TestLife(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1, v1)
	w.settle(c)
	state := w.state()
	if got := state.Status; !slices.Equal(got.PersistedStorageVersionHashes, []string{"Unknown"}) || got.CurrentStorageVersionHash != hash(v1) {
		t.Fatalf("first status %+v", got)
	}
	if state.Spec.Resource != (migrationv1alpha1.GroupResource{Group: cronJobs.Group, Resource: cronJobs.Resource}) {
		t.Errorf("spec %+v", state.Spec)
	}
	first := w.migrations()
	if len(first) != 1 || migrationv1alpha1.TargetOf(&first[0]) != target(w, 1, v1) || first[0].Spec.Resource.Version != "v1" {
		t.Fatalf("migrations %+v", first)
	}

	w.end(first[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	state = w.state()
	if got := state.Status.PersistedStorageVersionHashes; !slices.Equal(got, []string{hash(v1)}) {
		t.Errorf("stored set after success %v", got)
	}
	if got := state.Annotations[migrationv1alpha1.StoredEncodingsAnnotation]; got != string(v1) {
		t.Errorf("readable stored set after success %q", got)
	}

	w.report(v2, v1)
	w.settle(c)
	if got := w.state().Status; got.CurrentStorageVersionHash != "Unknown" || !slices.Equal(got.PersistedEncodings, []string{string(v1), string(v2)}) {
		t.Errorf("status without agreement %+v", got)
	}
	w.report(v2, v2)
	w.settle(c)
	second := w.migrations()
	if len(second) != 1 || migrationv1alpha1.TargetOf(&second[0]) != target(w, 3, v2) {
		t.Fatalf("migrations after agreement %+v", second)
	}
	w.end(second[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	if got := migrationv1alpha1.ViewState(w.state()); !got.Only(v2) || got.Of.Epoch != 3 {
		t.Errorf("state at the end %s", got)
	}
}

// TestGone: a resource that nobody serves any more, as after a rollback, has no kind that a controller could learn after its
// start. Its StorageState is written nevertheless.
func TestGone(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	sv := w.storageVersion()
	w.must(w.client.Delete(t.Context(), sv, client.Preconditions{UID: &sv.UID}))
	restarted := New(Config{Client: w.client, Kinds: kinds{}, Clock: w.clock})
	w.settle(restarted)
	got := w.state().Status
	if got.Message != evolve.Gone || got.CurrentStorageVersionHash != "Unknown" || !slices.Equal(got.PersistedStorageVersionHashes, []string{hash(v1), "Unknown"}) {
		t.Errorf("status %+v", got)
	}
}

// TestOrder: the StorageState is read before the StorageVersion, and written before a
// migration is made.
func TestOrder(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	w.Calls = nil
	w.step(c)
	expect(t, w.Calls,
		"get StorageState", "get StorageVersion", "list StorageVersionMigrationList", "get CustomResourceDefinition",
		"create StorageState", "update status StorageState")
	w.Calls = nil
	w.step(c)
	expect(t, w.Calls,
		"get StorageState", "get StorageVersion", "list StorageVersionMigrationList", "get CustomResourceDefinition",
		"list LeaseList", "create StorageVersionMigration")
}

// TestReadableCopyPromisesNothing: at every moment the annotation with the readable encodings lists all that the
// status lists, and the definition that the StorageState names is never newer than the epoch of its status.
func TestReadableCopyPromisesNothing(t *testing.T) {
	w, c := newWorld(t, served)
	check := func(when string) {
		state := w.state()
		if state == nil || len(state.Status.PersistedEncodings) == 0 {
			return
		}
		if !migrationv1alpha1.Covers(state, migrationv1alpha1.ViewState(state)) {
			t.Errorf("before %q: the status lists %v, the annotation %q", when, state.Status.PersistedEncodings,
				state.Annotations[migrationv1alpha1.StoredEncodingsAnnotation])
		}
		if view := migrationv1alpha1.ViewState(state); view.Definition > fmt.Sprintf("u/%d", view.Of.Epoch) {
			t.Errorf("before %q: the status is of epoch %d, and the definition is %s", when, view.Of.Epoch, view.Definition)
		}
	}
	w.Before = func(call string) error { check(call); return nil }
	for _, encodings := range [][]agree.Encoding{{v1}, {v1, v2}, {v2}, {v1}} {
		w.report(encodings...)
		w.Quietly(func() {
			sv := w.storageVersion()
			sv.Annotations[storageversion.DefinitionAnnotation] = "u/" + sv.Annotations[storageversion.EpochAnnotation]
			w.must(w.client.Update(t.Context(), sv))
		})
		w.settle(c)
		for _, m := range w.migrations() {
			w.end(m.Name, migrationv1alpha1.MigrationSucceeded)
		}
		w.settle(c)
		check("the end")
		if state := migrationv1alpha1.ViewState(w.state()); state.Definition != fmt.Sprintf("u/%d", state.Of.Epoch) {
			t.Errorf("at the end of epoch %d the definition is %q", state.Of.Epoch, state.Definition)
		}
	}
	if got := w.state().Annotations[migrationv1alpha1.StoredEncodingsAnnotation]; got != string(v1) {
		t.Errorf("annotation at the end %q", got)
	}
}

// TestDeleteIsConditional: the trigger deletes a migration by its uid; another one of the same name stays.
func TestDeleteIsConditional(t *testing.T) {
	w, c := newMigrating(t)
	old := w.migrations()[0]
	w.report(v1, v2)
	w.step(c) // writes the StorageState
	w.Once("delete StorageVersionMigration", func() {
		w.Quietly(func() {
			w.must(w.client.Delete(context.Background(), &old, client.Preconditions{UID: &old.UID}))
			again := &migrationv1alpha1.StorageVersionMigration{Spec: old.Spec}
			again.Name = old.Name
			w.must(w.client.Create(context.Background(), again))
		})
	})
	if _, err := c.Step(context.Background(), cronJobs); !changed(err) {
		t.Fatalf("error %v, want one that says that the look was too old", err)
	}
	if got := w.migrations(); len(got) != 1 || got[0].UID == old.UID {
		t.Errorf("migrations %v", got)
	}
}

func TestUsersMigration(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	w.user("mine", "v1")
	w.settle(c)
	got := w.migrations()
	if len(got) != 1 || migrationv1alpha1.TargetOf(&got[0]) != target(w, 1, v1) {
		t.Fatalf("migrations %+v, want the user's, stamped", got)
	}
	w.end("mine", migrationv1alpha1.MigrationRunning)
	w.report(v1, v2)
	w.settle(c)
	got = w.migrations()
	failed := migrationv1alpha1.True(&got[0], migrationv1alpha1.MigrationFailed)
	if len(got) != 1 || failed == nil || failed.Reason != migrationv1alpha1.ReasonAgreementLost {
		t.Errorf("after the agreement is lost: %+v", got)
	}
	w.wantEvent("mine", migrationv1alpha1.ReasonAgreementLost)
	w.wantEnded("mine Failed")
}

// TestAborted: when the trigger deletes its migration because the agreement is lost, there is an Event of it.
func TestAborted(t *testing.T) {
	w, c := newMigrating(t)
	made := w.migrations()
	if len(made) != 1 {
		t.Fatalf("migrations %+v", made)
	}
	w.report(v1, v2)
	w.settle(c)
	if got := w.migrations(); len(got) > 0 {
		t.Errorf("migrations %+v after the agreement is lost", got)
	}
	w.wantEvent(made[0].Name, migrationv1alpha1.EventAborted)
	w.wantEnded(made[0].Name + " Aborted")
}

// TestEndedMeanwhile: a migration ends while the trigger is about to delete it. It does not count as aborted; only
// the migrator counts its end.
func TestEndedMeanwhile(t *testing.T) {
	w, c := newMigrating(t)
	made := w.migrations()[0].Name
	w.report(v1, v2)
	w.step(c) // writes the StorageState
	w.Once("delete StorageVersionMigration", func() {
		w.end(made, migrationv1alpha1.MigrationFailed)
	})
	if _, err := c.Step(context.Background(), cronJobs); !changed(err) {
		t.Fatalf("error %v, want one that says that the look was too old", err)
	}
	w.settle(c)
	w.wantEnded()
}

func (w *world) wantEnded(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.ended, want) {
		w.t.Errorf("the trigger says that it has ended %q, want %q", w.ended, want)
	}
}

// wantEvent asserts that there is exactly one Warning Event with this reason about the object.
func (w *world) wantEvent(name, reason string) {
	w.t.Helper()
	var list corev1.EventList
	w.must(w.client.List(context.Background(), &list))
	n := 0
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name && e.Reason == reason && e.Type == corev1.EventTypeWarning && e.Message != "" {
			n++
		}
	}
	if n != 1 {
		w.t.Errorf("%d events tell that %s is %s: %+v", n, name, reason, list.Items)
	}
}

func TestPrune(t *testing.T) {
	for _, test := range []struct {
		name string
		// meanwhile happens between the reading of the CRD and its update.
		meanwhile func(w *world)
		pruned    bool
	}{
		{"nothing changes", func(*world) {}, true},
		{"a server reports another encoding", func(w *world) { w.report(v2, v1) }, false},
		{"the servers changed to and fro", func(w *world) { w.report(v1); w.report(v2) }, false},
		{"a server has come that does not report", func(w *world) { w.stock(stock) }, false},
		{"upstream's code keeps a Lease beside a server's", func(w *world) { w.stock(storageversion.NewUpstreamIdentity()) }, true},
		{"the CRD stores another version", func(w *world) {
			w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = true, false
			})
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, c := toPrune(t)
			w.step(c) // writes the stored set
			reads := 0
			w.Before = func(call string) error {
				// The trigger reads the StorageVersion for the second time when it is about to prune.
				if call == "get StorageVersion" {
					if reads++; reads == 2 {
						test.meanwhile(w)
					}
				}
				return nil
			}
			_, err := c.Step(context.Background(), cronJobs)
			w.Before = nil
			if test.pruned != (err == nil) || err != nil && !changed(err) {
				t.Errorf("error %v", err)
			}
			if stored := w.storedVersions(); slices.Equal(stored, []string{"v2"}) != test.pruned {
				t.Errorf("storedVersions %v", stored)
			}
			if reads != 2 {
				t.Errorf("the StorageVersion was read %d times, want 2", reads)
			}
		})
	}
}

// TestFailingActionHoldsNoOtherUp: an error for one migration does not keep the trigger from its actions for
// another, nor from the heartbeat of the StorageState; but no new migration is made then.
func TestFailingActionHoldsNoOtherUp(t *testing.T) {
	w, c := newMigrating(t)
	for _, name := range []string{"a-user", "b-user"} {
		w.user(name, "v1")
	}
	before := w.state().Status.LastHeartbeatTime
	w.clock.Step(evolve.UntilBeat(cronJobs, w.clock.Now()))
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "StorageVersionMigration"}, "a-user", nil)
	updates := 0
	w.Before = func(call string) error {
		if call == "update StorageVersionMigration" {
			if updates++; updates == 1 {
				return invalid
			}
		}
		return nil
	}
	if result, err := c.Step(context.Background(), cronJobs); !apierrors.IsInvalid(err) || len(result.Done) != 2 {
		t.Errorf("done %v, error %v, want the second adoption, the heartbeat, and the error of the first", result.Done, err)
	}
	for _, m := range w.migrations() {
		if adopted := migrationv1alpha1.TargetOf(&m) == target(w, 1, v1); adopted == (m.Name == "a-user") {
			t.Errorf("%s is adopted: %t", m.Name, adopted)
		}
	}
	if after := w.state().Status.LastHeartbeatTime; !before.Before(&after) {
		t.Errorf("no heartbeat since %s", before)
	}
	// Now an old migration cannot be deleted: no new one is made beside it.
	w.Before = nil
	for _, m := range w.migrations() {
		w.must(w.client.Delete(context.Background(), &m, client.Preconditions{UID: &m.UID}))
	}
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationFailed)
	w.settle(c)
	w.clock.Step(evolve.Backoff(10))
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	w.Fail("delete StorageVersionMigration", forbidden)
	if result, err := c.Step(context.Background(), cronJobs); !apierrors.IsForbidden(err) || len(w.migrations()) != 1 {
		t.Errorf("done %v, error %v, migrations %v", result.Done, err, w.migrations())
	}
}

// TestAggregatedState: an annotation of the StorageState says that an aggregated API server stores the objects, also
// when its StorageVersion is deleted. It is removed when another server reports the resource.
func TestAggregatedState(t *testing.T) {
	w, c := newWorld(t, served)
	label := func(labels map[string]string) {
		sv := w.storageVersion()
		sv.Labels = labels
		w.must(w.client.Update(context.Background(), sv))
	}
	want := func(want, when string) {
		t.Helper()
		w.settle(c)
		if got := w.state().Annotations[migrationv1alpha1.AggregatedAnnotation]; got != want {
			t.Errorf("%s the state says %q, want %q", when, got, want)
		}
	}
	w.report(v1)
	want("", "of a server of the control plane")
	label(map[string]string{storageversion.AggregatedLabel: "5a1c"})
	want("true", "of an aggregated server")
	label(nil)
	want("", "of a server of the control plane again")
	label(map[string]string{storageversion.AggregatedLabel: "5a1c"})
	want("true", "of an aggregated server again")
	sv := w.storageVersion()
	w.must(w.client.Delete(context.Background(), sv, client.Preconditions{UID: &sv.UID}))
	want("true", "of an aggregated server that is gone")
}

// TestKindRemembered: the StorageState of a resource of aggregated API servers is written also while discovery does not
// tell its kind, by a server that was elected meanwhile.
func TestKindRemembered(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	sv := w.storageVersion()
	sv.Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"}
	w.must(w.client.Update(context.Background(), sv))
	w.settle(c)
	w.report(v1, v2)
	elected := New(Config{Client: w.client, Kinds: silent{}, Clock: w.clock})
	_, err := elected.Step(context.Background(), cronJobs)
	w.must(err)
	if s := w.state().Status; !slices.Contains(s.PersistedEncodings, string(v2)) || s.CurrentEncoding != string(evolve.Unknown) {
		t.Errorf("the state is %+v", s)
	}
}

func TestDeletedCRDTakesItsState(t *testing.T) {
	w, c := newWorld(t, kinds{})
	crd := w.crd("v1", "v1")
	w.report(v1)
	w.settle(c)
	if w.state().Annotations[migrationv1alpha1.CustomResourceAnnotation] != "true" {
		t.Fatal("the state does not say that it is a custom resource's")
	}
	w.must(w.client.Delete(context.Background(), crd, client.Preconditions{UID: &crd.UID}))
	sv := w.storageVersion()
	w.must(w.client.Delete(context.Background(), sv, client.Preconditions{UID: &sv.UID}))
	w.settle(c)
	if w.state() != nil || len(w.migrations()) > 0 {
		t.Errorf("left: %v, %v", w.state(), w.migrations())
	}
}

// TestDeletedCRDUnseen: the trigger looks at the resource for the first time after the CustomResourceDefinition was
// deleted, while its StorageVersion still exists and discovery still has its kind.
func TestDeletedCRDUnseen(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	sv := w.storageVersion()
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, storageversion.CRDAnnotation, "a")
	w.must(w.client.Update(context.Background(), sv))
	w.settle(c)
	if w.state() == nil {
		t.Fatal("no state was written")
	}
	w.must(w.client.Delete(context.Background(), sv, client.Preconditions{UID: &sv.UID}))
	w.settle(c)
	if w.state() != nil || len(w.migrations()) > 0 {
		t.Errorf("left: %v, %v", w.state(), w.migrations())
	}
}

func TestWaitsForStartingServers(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	w.lease("apiserver-0", true)
	w.lease("apiserver-1", false)
	w.settle(c)
	result := w.step(c)
	if len(w.migrations()) > 0 || !result.Starting || result.After != 15*time.Second {
		t.Fatalf("migrations %v, result %+v", w.migrations(), result)
	}
	w.clock.Step(15 * time.Second)
	w.settle(c)
	if len(w.migrations()) != 1 {
		t.Error("the server that hangs in its start is waited for longer than its Lease")
	}
}

// TestUnknownKind: without the kind of a resource there are no storage version hashes, so no StorageState is
// created.
func TestUnknownKind(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.report(v1)
	if _, err := c.Step(context.Background(), cronJobs); err == nil || !strings.Contains(err.Error(), "kind of cronjobs.batch.example.com") {
		t.Errorf("error %v", err)
	}
	if w.state() != nil {
		t.Error("a state is created before its hashes are known")
	}
}

// TestDeletedDefinition: no migration is made for a CustomResourceDefinition that is being deleted, since its
// objects are deleted with it.
func TestDeletedDefinition(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		w, c := newWorld(t, kinds{})
		w.crd("v2", "v1", "v2")
		w.report(v2)
		crd := w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Finalizers = []string{"example.com/last"} })
		if deleted {
			w.Quietly(func() { w.must(w.client.Delete(t.Context(), crd, client.Preconditions{UID: &crd.UID})) })
		}
		w.settle(c)
		if n := len(w.migrations()); (n == 0) != deleted {
			t.Errorf("deleted %t: %d migrations", deleted, n)
		}
	}
}
