package trigger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// TestMissingResource: a migration of a resource that no server stores fails, also if it names a subresource, whose
// name cannot be the name of an object.
func TestMissingResource(t *testing.T) {
	for _, gr := range []schema.GroupResource{cronJobs, {Resource: "pods/status"}} {
		t.Run(gr.String(), func(t *testing.T) { missing(t, gr) })
	}
}

// TestNobodyKnows: a migration of a resource whose aggregated API server does not answer, so that discovery does not
// have it, waits with a message that says what to look at.
func TestNobodyKnows(t *testing.T) {
	w, c := newWorld(t, silent{})
	w.user("away", "v1")
	for range 3 {
		result := w.step(c)
		w.clock.Step(result.After)
	}
	got := w.migrations()[0]
	if why := migrationv1alpha1.Waiting(&got); !strings.Contains(why, "kubectl get apiservices") {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
}

// silent are Kinds that answer with an error.
type silent struct{}

// Kind implements Kinds.
func (silent) Kind(context.Context, schema.GroupResource) (string, error) {
	return "", errors.New("the server is currently unable to handle the request")
}

func missing(t *testing.T, gr schema.GroupResource) {
	w, c := newWorld(t, kinds{})
	typo := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: gr.Group, Version: "v1", Resource: gr.Resource},
	}}
	typo.Name = "typo"
	original := &storagemigrationv1.StorageVersionMigration{}
	original.Name, original.UID = "original", "original-uid"
	typo.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(original, storagemigrationv1.SchemeGroupVersion.WithKind(migrationv1alpha1.MigrationKind))}
	w.must(w.client.Create(context.Background(), typo))
	result, err := c.Step(context.Background(), gr)
	w.must(err)
	if result.After <= 0 || result.After > time.Minute {
		t.Fatalf("looks again after %s", result.After)
	}
	w.clock.Step(result.After)
	_, err = c.Step(context.Background(), gr)
	w.must(err)
	got := w.migrations()[0]
	failed := migrationv1alpha1.True(&got, migrationv1alpha1.MigrationFailed)
	if failed == nil || failed.Reason != migrationv1alpha1.ReasonResourceNotFound || !strings.Contains(failed.Message, gr.String()) {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
	w.wantEnded("typo Failed")
	for _, name := range []string{"typo", "original"} {
		w.wantEvent(name, migrationv1alpha1.ReasonResourceNotFound)
	}
}

// TestVersionNotServed: a user's migration fails if it names a version in which no server serves the resource; the
// message has the served versions. A migration that names a served version, or none, goes on.
func TestVersionNotServed(t *testing.T) {
	for version, refused := range map[string]bool{"v9": true, "v1": false, "": false} {
		w, c := newWorld(t, served)
		w.report(v1)
		w.user("mine", version)
		w.settle(c)
		for _, got := range w.migrations() {
			if got.Name != "mine" {
				continue
			}
			failed := migrationv1alpha1.True(&got, migrationv1alpha1.MigrationFailed)
			if (failed != nil) != refused {
				t.Errorf("%q: it says %+v", version, got.Status.Conditions)
			}
			if failed != nil && (failed.Reason != migrationv1alpha1.ReasonVersionNotServed || !strings.Contains(failed.Message, `in version "v9" of spec.resource, but in v1: `)) {
				t.Errorf("%q: %s: %s", version, failed.Reason, failed.Message)
			}
		}
		if refused {
			w.wantEvent("mine", migrationv1alpha1.ReasonVersionNotServed)
		}
	}
}

// TestNotServed: a migration of a resource that servers store, and serve only as a subresource of another one, fails
// with that reason. Nothing is tried again and again for a kind that discovery does not know. When a server serves it,
// it is migrated as any other.
func TestNotServed(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.reportAs(false, v1)
	w.user("mine", "v1")
	w.step(c)
	w.step(c)
	got := w.migrations()[0]
	failed := migrationv1alpha1.True(&got, migrationv1alpha1.MigrationFailed)
	if failed == nil || failed.Reason != migrationv1alpha1.ReasonResourceNotFound || !strings.Contains(failed.Message, "no resource of its own") {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
	if w.state() != nil {
		t.Errorf("the state %+v", w.state())
	}
	c.cfg.Kinds = served
	w.report(v1)
	w.settle(c)
	if made := len(w.migrations()); made != 2 || w.state() == nil {
		t.Errorf("when it is served there are %d migrations, and the state %+v", made, w.state())
	}
}

// TestPausedStaysPaused: when the StorageState of a resource is deleted, its objects are migrated anew, but not
// while the migration is paused by a user.
func TestPausedStaysPaused(t *testing.T) {
	w, c := newMigrating(t)
	begun := w.migrations()[0]
	w.Quietly(func() {
		begun.Annotations[migrationv1alpha1.ClaimedByAnnotation] = "apiserver-a"
		begun.Spec.Paused = true
		w.must(w.client.Update(context.Background(), &begun))
		migrationv1alpha1.SetCondition(&begun, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused, "", begun.CreationTimestamp)
		begun.Status.ContinueToken = "half"
		w.must(w.client.Status().Update(context.Background(), &begun))
		state := w.state()
		w.must(w.client.Delete(context.Background(), state, client.Preconditions{UID: &state.UID, ResourceVersion: &state.ResourceVersion}))
	})
	w.settle(c)
	got := w.migrations()
	if len(got) != 1 || got[0].UID != begun.UID || !got[0].Spec.Paused || got[0].Status.Phase != migrationv1alpha1.PhasePaused {
		t.Fatalf("migrations %+v", got)
	}
	if now := target(w, 1, v1); migrationv1alpha1.TargetOf(&got[0]) != now || got[0].Status.ContinueToken != "" || got[0].Annotations[migrationv1alpha1.ClaimedByAnnotation] != "" {
		t.Errorf("it is not to begin anew for %s: %+v", now, got[0])
	}
	if state := migrationv1alpha1.ViewState(w.state()); state.Only(v1) {
		t.Errorf("nothing was migrated, and the state is %s", state)
	}
	w.end(got[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	if state := migrationv1alpha1.ViewState(w.state()); !state.Only(v1) {
		t.Errorf("it succeeded, and the state is %s", state)
	}
}

// TestCountsAnew: a migration that begins anew for another reason is the first attempt, and the waits after failures are
// those of the first ones again.
func TestCountsAnew(t *testing.T) {
	w, c := newMigrating(t)
	fail := func(wait time.Duration) {
		t.Helper()
		before := w.migrations()[0]
		w.end(before.Name, migrationv1alpha1.MigrationFailed)
		w.settle(c)
		w.clock.Step(wait)
		w.settle(c)
		if now := w.migrations(); len(now) != 1 || now[0].UID == before.UID {
			t.Fatalf("%s after it failed there are %+v", wait, now)
		}
	}
	anew := func() {
		w.Quietly(func() {
			limited := w.migrations()[0]
			limited.Spec.MaxObjectsPerSecond = ptr.To[int64](3)
			w.must(w.client.Update(context.Background(), &limited))
			state := w.state()
			w.must(w.client.Delete(context.Background(), state, client.Preconditions{UID: &state.UID, ResourceVersion: &state.ResourceVersion}))
		})
		w.settle(c)
	}
	fail(evolve.Backoff(1))
	anew()
	fail(evolve.Backoff(1))
	fail(evolve.Backoff(2)) // although the name of the second attempt is taken
	for range 3 {
		fail(evolve.MaxBackoff)
	}
	anew()
	fail(evolve.Backoff(1))
	fail(evolve.Backoff(2))
}

// lateMapper has one more kind after it was reset, as a RESTMapper over discovery can.
type lateMapper struct {
	*meta.DefaultRESTMapper
	late schema.GroupVersionKind
}

func (m lateMapper) Reset() { m.Add(m.late, meta.RESTScopeNamespace) }

func TestKindsOf(t *testing.T) {
	early := schema.GroupVersionKind{Group: "batch.example.com", Version: "v1", Kind: "CronJob"}
	late := schema.GroupVersionKind{Group: "late.example.com", Version: "v1", Kind: "Late"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(early, meta.RESTScopeNamespace)
	kinds := KindsOf(lateMapper{mapper, late})
	for gr, want := range map[schema.GroupResource]string{
		{Group: "batch.example.com", Resource: "cronjobs"}: "CronJob",
		{Group: "late.example.com", Resource: "lates"}:     "Late",
	} {
		if got, err := kinds.Kind(context.Background(), gr); err != nil || got != want {
			t.Errorf("%s: %s, %v", gr, got, err)
		}
	}
	for _, gr := range []schema.GroupResource{
		{Group: "batch.example.com", Resource: "typos"},
		{Group: "batch.example.com", Resource: "cronjob"},
		{Group: "batch.example.com", Resource: "CronJobs"},
		{Group: "batch", Resource: "cronjobs"},
		{Resource: "cronjobs"},
	} {
		if kind, err := kinds.Kind(context.Background(), gr); !meta.IsNoMatchError(err) {
			t.Errorf("%s, which is not served: %q, %v", gr, kind, err)
		}
	}
}

// TestLimitsStay: after a migration has failed, the next attempt has the limits that a user set for the failed one.
func TestLimitsStay(t *testing.T) {
	w, c := newMigrating(t)
	begun := w.migrations()[0]
	w.Quietly(func() {
		begun.Spec.MaxObjectsPerSecond = ptr.To[int64](3)
		begun.Spec.MaxAddedLatency = &metav1.Duration{Duration: time.Second}
		w.must(w.client.Update(context.Background(), &begun))
	})
	w.end(begun.Name, migrationv1alpha1.MigrationFailed)
	w.settle(c)
	w.clock.Step(evolve.Backoff(1))
	w.settle(c)
	got := w.migrations()
	if len(got) != 1 || got[0].UID == begun.UID {
		t.Fatalf("migrations %+v", got)
	}
	if spec := got[0].Spec; ptr.Deref(spec.MaxObjectsPerSecond, 0) != 3 || spec.MaxAddedLatency == nil || spec.MaxAddedLatency.Duration != time.Second {
		t.Errorf("the next attempt is %+v", spec)
	}
}
