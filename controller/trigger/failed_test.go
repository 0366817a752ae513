package trigger

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// fail sets the only migration to Failed for this reason, at a time that is so far ahead of the trigger's clock.
func (w *world) fail(reason string, ahead time.Duration) {
	w.t.Helper()
	m := w.migrations()[0]
	migrationv1alpha1.SetCondition(&m, migrationv1alpha1.MigrationFailed, reason, "", metav1.NewTime(w.clock.Now().Add(ahead)))
	w.Quietly(func() { w.must(w.client.Status().Update(w.t.Context(), &m)) })
}

// attempt lets the trigger do everything that is due, and returns the name of the only migration.
func (w *world) attempt(c *Controller) string {
	w.t.Helper()
	w.settle(c)
	all := w.migrations()
	if len(all) != 1 {
		w.t.Fatalf("%d migrations", len(all))
	}
	return all[0].Name
}

// TestFailedByAnotherClock: each failed migration is followed by its whole backoff and no more, whatever the clock
// of the migrating server shows.
func TestFailedByAnotherClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, -30 * time.Second, -time.Hour, 30 * time.Second, evolve.MaxBackoff, time.Hour} {
		w, c := newWorld(t, served)
		w.report(v1)
		for failures := 1; failures <= 9; failures++ {
			was := w.attempt(c)
			w.fail("Test", ahead)
			w.settle(c)
			w.clock.Step(evolve.Backoff(failures) - time.Second)
			if is := w.attempt(c); is != was {
				t.Fatalf("clock %s ahead, failure %d: %s follows %s before the pause is over", ahead, failures, is, was)
			}
			w.clock.Step(time.Second)
			if is := w.attempt(c); is == was {
				t.Fatalf("clock %s ahead, failure %d: none follows %s after the pause", ahead, failures, was)
			}
		}
	}
}

// TestFailedAndMended: a change of the CustomResourceDefinition, which may repair its conversion webhook, ends a
// long backoff. A migration that failed because its definition changed is not followed by a long backoff either.
func TestFailedAndMended(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		mend   bool
		pause  time.Duration
	}{
		"failed":                  {"Test", false, evolve.Backoff(6)},
		"failed and mended":       {"Test", true, evolve.Backoff(1)},
		"changed under it":        {migrationv1alpha1.ReasonCRDChanged, false, evolve.Backoff(4)},
		"changed under it, twice": {migrationv1alpha1.ReasonCRDChanged, true, evolve.Backoff(1)},
	} {
		w, c := newWorld(t, kinds{})
		w.crd("v2", "v1", "v2")
		w.report(v2)
		var was string
		for failures := 1; failures <= 6; failures++ {
			was = w.attempt(c)
			w.fail(test.reason, 0)
			w.settle(c)
			if failures < 6 {
				w.clock.Step(evolve.Backoff(failures))
			}
		}
		if test.mend {
			w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Generation++ })
		}
		w.clock.Step(test.pause - time.Second)
		if is := w.attempt(c); is != was {
			t.Errorf("%s: %s follows %s before the pause is over", name, is, was)
		}
		w.clock.Step(time.Second)
		if is := w.attempt(c); is == was {
			t.Errorf("%s: none follows %s after %s", name, was, test.pause)
		}
	}
}

// TestFailedBefore: a newly elected trigger finds a failed migration. It waits for the rest of the backoff if the
// clocks agree, and at most for one whole backoff if they do not.
func TestFailedBefore(t *testing.T) {
	for ahead, rest := range map[time.Duration]time.Duration{0: 4 * time.Second, 3 * time.Second: 7 * time.Second, time.Hour: 10 * time.Second} {
		w, c := newWorld(t, served)
		w.report(v1)
		was := w.attempt(c)
		w.fail("Test", ahead)
		w.settle(c)
		w.clock.Step(6 * time.Second)
		leader := newController(c.cfg)
		w.settle(leader)
		w.clock.Step(rest - time.Second)
		if is := w.attempt(leader); is != was {
			t.Errorf("clock %s ahead: %s follows %s before %s", ahead, is, was, rest)
		}
		w.clock.Step(time.Second)
		if is := w.attempt(leader); is == was {
			t.Errorf("clock %s ahead: none follows %s after %s", ahead, was, rest)
		}
	}
}
