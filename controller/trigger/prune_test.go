package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// changeCRD changes the CustomResourceDefinition, if change is not nil, and returns it.
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

// TestHoldAndHistory: storedVersions of a CustomResourceDefinition on hold are not pruned though every object is
// migrated; they are when the hold ends. The history has the migration once, with the encodings before and after.
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
	if got := w.storedVersions(); !slices.Equal(got, []string{"v1", "v2"}) {
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
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) {
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

// TestRememberedBeforeLowered: the history in the StorageState has a migration before the stored set loses an
// encoding, so that a reader in between finds the encodings that objects were in before.
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

// TestFailureIsRemembered: the history has a failed migration before it is deleted for the next attempt.
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

// TestPolicyAskedAgain: an annotation that is set after the trigger has read the definition, and before it prunes,
// counts.
func TestPolicyAskedAgain(t *testing.T) {
	w, c := toPrune(t)
	c.cfg.Policy = func(_ evolve.Observation, crd *apiextensionsv1.CustomResourceDefinition) (p evolve.Policy) {
		p.KeepStored = crd.Annotations["keep"]
		return p
	}
	reads := 0
	w.Before = func(call string) error {
		switch call {
		case "get StorageState": // the trigger begins to look at the resource
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
	if got := w.storedVersions(); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v", got)
	}
	w.Before = nil
	w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Annotations = nil })
	w.settle(c)
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("allowed again, storedVersions are %v", got)
	}
}

// TestKeep: a version that may still be stored, and that somebody took out of storedVersions, is put back; the
// update is conditional on the resourceVersion that was read.
func TestKeep(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v1)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	w.report(v1, v2)
	w.settle(c)
	if got := w.storedVersions(); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Fatalf("storedVersions are %v before anybody touched them", got)
	}
	w.prune("v2")
	expect(t, w.settle(c), "keep batch.example.com/v1 in storedVersions of "+cronJobs.String())
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("storedVersions are %v", got)
	}

	w.prune("v2")
	touched := false
	w.Before = func(call string) error {
		if call == "update status CustomResourceDefinition" && !touched {
			touched = true
			w.prune("v2") // somebody changes the definition after it was read
			w.changeCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Labels = map[string]string{"touched": "true"} })
		}
		return nil
	}
	_, err := c.Step(context.Background(), cronJobs)
	w.Before = nil
	if !touched || !changed(err) {
		t.Errorf("touched %v, error %v", touched, err)
	}
}

// TestKeepRefused: if the API server refuses that a version is put back, the StorageState says so, and one Event
// of the definition; the log does not say that it was put back.
func TestKeepRefused(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v1, v2)
	w.settle(c)
	w.prune("v2")
	var logged []string
	c.cfg.Logger = funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
	w.Fail("update status CustomResourceDefinition", apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, cronJobs.String(), errors.New("guarded")))
	for range 3 {
		if _, err := c.Step(t.Context(), cronJobs); !apierrors.IsForbidden(err) {
			t.Errorf("error %v", err)
		}
	}
	w.Before = nil
	if why := w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation]; !strings.Contains(why, "guarded") {
		t.Errorf("the StorageState tells %q", why)
	}
	w.wantEvent(cronJobs.String(), migrationv1alpha1.ReasonStoredVersionsRefused)
	if len(logged) > 0 {
		t.Errorf("logged is %q", logged)
	}
	w.settle(c)
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2", "v1"}) || w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation] != "" {
		t.Errorf("allowed again, storedVersions are %v, and the StorageState has %v", got, w.state().Annotations)
	}
}

// TestKeepUnknown: while the stored set is Unknown, a version that was in storedVersions is put back. That ends
// when a migration succeeds.
func TestKeepUnknown(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v1, v2)
	w.settle(c)
	if state := w.state(); !slices.Equal(state.Status.PersistedEncodings, []string{"Unknown"}) {
		t.Fatalf("the stored set is %v", state.Status.PersistedEncodings)
	}
	listed := func(want string) {
		t.Helper()
		if got := w.state().Annotations[migrationv1alpha1.ListedEncodingsAnnotation]; got != want {
			t.Errorf("listed are %q, want %q", got, want)
		}
	}
	listed("batch.example.com/v1,batch.example.com/v2")
	w.prune("v2")
	expect(t, w.settle(c), "keep batch.example.com/v1 in storedVersions of "+cronJobs.String())
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("storedVersions are %v", got)
	}
	w.report(v2)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	listed("")
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("storedVersions are %v after the proof", got)
	}
}

// storedVersions returns the storedVersions of the definition.
func (w *world) storedVersions() []string {
	w.t.Helper()
	return w.changeCRD(nil).Status.StoredVersions
}

// prune sets the definition's storedVersions, as another migrator could.
func (w *world) prune(to ...string) {
	w.t.Helper()
	w.Quietly(func() {
		crd := w.changeCRD(nil)
		crd.Status.StoredVersions = to
		w.must(w.client.Status().Update(context.Background(), crd))
	})
}

// looker returns a function that has cronJobs looked at so many times, and waits for each last look.
func looker(t *testing.T, c *Controller) func(times int) {
	r := newRun(c)
	t.Cleanup(r.queue.ShutDown)
	return func(times int) {
		for range times {
			r.one(t.Context(), cronJobs)
			r.lookers.Wait()
		}
	}
}

// TestLastLook: the objects are looked at once more before storedVersions are pruned. An error of this last look
// keeps storedVersions as they are. There is no last look if the API server would refuse the pruning.
func TestLastLook(t *testing.T) {
	w, c := toPrune(t)
	looks := 0
	answer := errors.New("an object is stored in v1")
	c.cfg.LastLook = func(_ context.Context, gr schema.GroupResource, target evolve.Target) error {
		if looks++; gr != cronJobs || target.Encoding != v2 {
			t.Errorf("the last look is at %s for %s", gr, target)
		}
		return answer
	}
	look := looker(t, c)
	is := func(when string, want int, stored ...string) {
		t.Helper()
		if got := w.storedVersions(); looks != want || !slices.Equal(got, stored) {
			t.Errorf("%s: storedVersions are %v, after %d last looks; want %v, %d", when, got, looks, stored, want)
		}
	}
	w.Fail("update status CustomResourceDefinition", apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, cronJobs.String(), errors.New("guarded")))
	look(3)
	is("refused", 0, "v1", "v2")
	w.Before = nil
	look(1)
	is("the last look has failed", 1, "v1", "v2")
	answer = nil
	look(1)
	is("the last look has ended well", 2, "v1", "v2")
	look(1)
	is("after that", 2, "v2")
}

// TestPruneRefused: if the API server refuses the pruning, for example because of a guard, or its dry run before the last
// look, the StorageState has the whole answer in an annotation until the pruning succeeds, and one Event tells of it.
func TestPruneRefused(t *testing.T) {
	for name, lastLook := range map[string]func(context.Context, schema.GroupResource, evolve.Target) error{
		"without last looks": nil,
		"with last looks":    func(context.Context, schema.GroupResource, evolve.Target) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w, c := toPrune(t)
			c.cfg.LastLook = lastLook
			look := looker(t, c)
			told := func() string { return w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation] }
			refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, cronJobs.String(), errors.New("denied by a guard"))
			w.Fail("update status CustomResourceDefinition", refusal)
			look(3)
			if got := told(); got != refusal.Error() {
				t.Errorf("told is %q, want %q", got, refusal)
			}
			w.wantEvent(cronJobs.String(), migrationv1alpha1.ReasonStoredVersionsRefused)
			w.Before = nil
			look(2)
			if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) || told() != "" {
				t.Errorf("not refused any more, storedVersions are %v, told is %q", got, told())
			}
		})
	}
}

// TestRefusedLook: a last look whose patches are refused is told as a refused pruning is, until the pruning succeeds; other
// errors of it are not.
func TestRefusedLook(t *testing.T) {
	w, c := toPrune(t)
	answer := errors.New("timeout")
	c.cfg.LastLook = func(context.Context, schema.GroupResource, evolve.Target) error { return answer }
	look := looker(t, c)
	told := func() string { return w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation] }
	look(3)
	if got := told(); got != "" {
		t.Errorf("told is %q", got)
	}
	answer = RefusedLook("refused")
	look(3)
	if got := told(); got != "refused" {
		t.Errorf("told is %q", got)
	}
	w.wantEvent(cronJobs.String(), migrationv1alpha1.ReasonStoredVersionsRefused)
	answer = nil
	look(2)
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) || told() != "" {
		t.Errorf("not refused any more, storedVersions are %v, told is %q", got, told())
	}
}

// TestWithoutDryRuns: with an admission webhook that does not support dry runs, the last look and the pruning are done
// all the same. If the pruning itself is refused then, that is told once, however often it is tried.
func TestWithoutDryRuns(t *testing.T) {
	w, c := toPrune(t)
	looked, guarded := 0, true
	c.cfg.LastLook = func(context.Context, schema.GroupResource, evolve.Target) error {
		looked++
		return nil
	}
	tried := 0
	w.Before = func(call string) error {
		switch {
		case !strings.HasPrefix(call, "update status CustomResource"):
			return nil
		case tried < looked:
			if tried++; !guarded {
				return nil
			}
			return apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, cronJobs.String(), errors.New("guarded"))
		}
		return apierrors.NewBadRequest("admission webhook \"w\" does not support dry run")
	}
	look := looker(t, c)
	look(10)
	if tried < 2 {
		t.Errorf("it was tried %d times after %d last looks", tried, looked)
	}
	w.wantEvent(cronJobs.String(), migrationv1alpha1.ReasonStoredVersionsRefused)
	if why := w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation]; !strings.Contains(why, "guarded") {
		t.Errorf("the StorageState tells %q", why)
	}
	guarded = false
	look(3)
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("not refused any more, storedVersions are %v", got)
	}
}

// TestLastLooksAtATime: however many definitions are due together, there are no more last looks at a time than
// workers; and if all fail for one reason, the reason is logged once.
func TestLastLooksAtATime(t *testing.T) {
	_, c := newWorld(t, kinds{})
	const definitions = 50
	var told []string
	c.cfg.Logger = funcr.New(func(_, line string) { told = append(told, line) }, funcr.Options{})
	var under atomic.Int64
	var end chan struct{}
	c.cfg.LastLook = func(_ context.Context, gr schema.GroupResource, _ evolve.Target) error {
		under.Add(1)
		defer under.Add(-1)
		<-end
		return fmt.Errorf("look at %s: a webhook does not answer", gr)
	}
	r := newRun(c)
	defer r.queue.ShutDown()
	synctest.Test(t, func(t *testing.T) {
		end, r.under = make(chan struct{}), make(chan struct{}, cap(r.under)) // channels made inside the synctest bubble
		for i := range definitions {
			r.lookLast(t.Context(), schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("r", i)}, evolve.Target{})
		}
		var most int64
		for range definitions {
			synctest.Wait()
			most = max(most, under.Load())
			end <- struct{}{}
		}
		r.lookers.Wait()
		if most != int64(c.cfg.Workers) {
			t.Errorf("%d last looks at a time", most)
		}
	})
	if len(told) != 1 {
		t.Errorf("told is %q", told)
	}
}
