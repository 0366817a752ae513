package trigger

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// TestPausedStaysPaused: the objects of a resource whose StorageState is deleted are migrated anew,
// but not before a pause is over that somebody asked for.
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
	if now := target(t, w, 1, v1); migrationv1alpha1.TargetOf(&got[0]) != now || got[0].Status.ContinueToken != "" || got[0].Annotations[migrationv1alpha1.ClaimedByAnnotation] != "" {
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

// TestLimitsStay: the next attempt of a migration that failed has the limits that a user has set.
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
