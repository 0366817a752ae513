package trigger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// changeCRD changes the definition, and returns it.
func (w *world) changeCRD(change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	w.Quietly(func() {
		w.must(w.client.Get(context.Background(), client.ObjectKey{Name: cronJobs.String()}, crd))
		if change != nil {
			change(crd)
			w.must(w.client.Update(context.Background(), crd))
		}
	})
	return crd
}

// A cut-over on hold is not made though every object is migrated, and is made when it is
// released. The migration is remembered once, with the encodings that it was from and to.
func TestHoldAndHistory(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Annotations = map[string]string{migrationv1alpha1.HoldAnnotation: "true"}
	})
	w.report(v2)
	w.settle(c)
	migration := w.migrations()[0]
	w.end(migration.Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	if got := w.changeCRD(nil).Status.StoredVersions; !slices.Equal(got, []string{"v1", "v2"}) {
		t.Fatalf("on hold, storedVersions are %v", got)
	}
	past := migrationv1alpha1.History(w.state().Annotations)
	if len(past) != 1 || past[0].UID != migration.UID || past[0].To != string(v2) || past[0].Result != string(migrationv1alpha1.MigrationSucceeded) ||
		past[0].Made != migrationv1alpha1.MadeByTrigger || !slices.Equal(past[0].From, []string{migrationv1alpha1.Unknown}) {
		t.Errorf("remembered: %+v", past)
	}
	var logged []string
	c.cfg.Logger = funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
	w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Annotations = nil })
	w.settle(c)
	if got := w.changeCRD(nil).Status.StoredVersions; !slices.Equal(got, []string{"v2"}) {
		t.Errorf("released, storedVersions are %v", got)
	}
	const pruned = `"msg"="Pruned storedVersions" "resource"="cronjobs.batch.example.com" "from"=["v1" "v2"] "to"=["v2"]`
	if !slices.ContainsFunc(logged, func(line string) bool { return strings.Contains(line, pruned) }) {
		t.Errorf("logged is %q", logged)
	}
	if again := migrationv1alpha1.History(w.state().Annotations); len(again) != 1 {
		t.Errorf("remembered later: %+v", again)
	}
}

// A migration is remembered no later than the stored set is lowered: a reader of the
// StorageState in between is told the encodings that it was from.
func TestRememberedBeforeLowered(t *testing.T) {
	w, c := newMigrating(t)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	lowered := false
	w.Before = func(string) error {
		state := w.state()
		if slices.Equal(migrationv1alpha1.ViewState(state).Stored, []agree.Encoding{v1}) {
			lowered = true
			if past := migrationv1alpha1.History(state.Annotations); len(past) != 1 || !slices.Equal(past[0].From, []string{migrationv1alpha1.Unknown}) {
				t.Errorf("lowered, it remembers %+v", past)
			}
		}
		return nil
	}
	w.settle(c)
	if !lowered {
		t.Error("the stored set was not lowered, or nobody looked")
	}
}

// A migration that failed is remembered before it makes room for the next attempt.
func TestFailureIsRemembered(t *testing.T) {
	w, c := newMigrating(t)
	first := w.migrations()[0]
	w.end(first.Name, migrationv1alpha1.MigrationFailed)
	w.settle(c)
	if past := migrationv1alpha1.History(w.state().Annotations); len(past) != 1 {
		t.Errorf("remembered when it has failed: %+v", past)
	}
	w.clock.Step(evolve.Backoff(1))
	w.settle(c)
	if now := w.migrations(); len(now) != 1 || now[0].UID == first.UID {
		t.Fatalf("there is no second attempt: %v", now)
	}
	past := migrationv1alpha1.History(w.state().Annotations)
	if len(past) != 1 || past[0].UID != first.UID || past[0].Result != string(migrationv1alpha1.MigrationFailed) {
		t.Errorf("remembered: %+v", past)
	}
}

// An annotation that is set between the look and the pruning is obeyed.
func TestPolicyAskedAgain(t *testing.T) {
	w, c := toPrune(t)
	c.cfg.Policy = func(_ evolve.Observation, crd *apiextensionsv1.CustomResourceDefinition) (p evolve.Policy) {
		p.KeepStored = crd.Annotations["keep"]
		return p
	}
	reads := 0
	w.Before = func(call string) error {
		switch call {
		case "get StorageState": // a look begins
			reads = 0
		case "get CustomResourceDefinition":
			if reads++; reads == 2 {
				w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) {
					crd.Annotations = map[string]string{"keep": "for now"}
				})
			}
		}
		return nil
	}
	var err error
	for i := 0; i < 10 && err == nil; i++ {
		_, err = c.Step(context.Background(), cronJobs)
	}
	if !errors.Is(err, errChanged) || !strings.Contains(err.Error(), "for now") {
		t.Errorf("the look that was to prune ends with %v", err)
	}
	if got := w.changeCRD(nil).Status.StoredVersions; !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v", got)
	}
	w.Before = nil
	w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Annotations = nil })
	w.settle(c)
	if got := w.changeCRD(nil).Status.StoredVersions; !slices.Equal(got, []string{"v2"}) {
		t.Errorf("allowed again, storedVersions are %v", got)
	}
}
