package stock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
)

// newLateWorld returns a world with n objects stored in v2, and a definition that stores v1.
func newLateWorld(t *testing.T, n int) (*ownWorld, *widgetServers) {
	t.Helper()
	w, s := newOwnWorld(t), startWidgets(t, n, "v1")
	for _, o := range s.objects {
		o.stored = "v2"
	}
	api, err := migrateapi.NewClient(s.config())
	must(t, err)
	w.migrator.api, w.migrator.prover.api = api, api
	objects, err := metadata.NewForConfig(s.config())
	must(t, err)
	w.migrator.prover.objects = func(string) (metadata.Interface, error) { return objects, nil }
	w.is(widgetDefinition("a", 2, "v1", "v2", "v1"))
	w.step()
	w.pass(time.Minute)
	return w, s
}

// TestLateCreate: the request of a create has ended, and etcd does the create much later, in the former version.
// If that is between the proof and the pruning, nothing is pruned before everything is migrated and proven once
// more.
func TestLateCreate(t *testing.T) {
	w, s := newLateWorld(t, 3)
	w.config.Settings.PruneAfter = time.Minute
	if got := w.step(); got.Done || !strings.Contains(got.Why, "kept for a while") {
		t.Fatalf("proven: %+v", got)
	}
	s.create("v2")
	w.pass(time.Minute)
	if got := w.step(); got.Done || !strings.Contains(got.Why, "default/w00003") {
		t.Errorf("when it is time to prune: %+v", got)
	}
	s.create("v2") // comes after the last look
	w.pass(10 * time.Second)
	if got := w.step(); got.Done || !strings.Contains(got.Why, "kept for a while") {
		t.Errorf("proven anew: %+v", got)
	}
	w.pass(time.Minute)
	patches := s.patches
	if got := w.step(); !got.Done || s.patches != patches {
		t.Errorf("at last: %+v, with %d patches", got, s.patches-patches)
	}
	if slices.ContainsFunc(s.objects, func(o *widget) bool { return o.stored != "v1" }) {
		t.Error("an object is stored in v2")
	}
}

// TestLateCreateWhileMigrating: such a create may also come while objects are rewritten, after their list. The
// objects that the migration wrote itself are not patched again to find it, unless another process began the
// migration.
func TestLateCreateWhileMigrating(t *testing.T) {
	const objects = sampleSize + 50
	for _, tc := range []struct {
		name, resume string
		late         bool
		patches      int
	}{
		{"none", "", false, objects + sampleSize},
		{"one", "", true, 0},
		{"one, and another process began", `{"Continue":"100"}`, true, 0},
		{"none, and another process began", `{"Continue":"100"}`, false, objects - 100 + 100 + sampleSize},
	} {
		w, s := newLateWorld(t, objects)
		if tc.resume != "" {
			for _, o := range s.objects[:100] {
				o.stored = "v1"
			}
		}
		last := objects
		if tc.resume != "" {
			last -= 100
		}
		s.patched = func(int) error {
			if tc.late && s.patches == last {
				s.create("v2")
			}
			return nil
		}
		job := jobOf(widgetDefinition("a", 2, "v1", "v2", "v1"), "example.com/v1")
		job.Resume = tc.resume
		must(t, w.observer.round(t.Context(), widgets))
		_, err := w.migrator.Rewrite(t.Context(), job, func(claim.Progress) {})
		if tc.late != errors.Is(err, claim.ErrUnproven) || !tc.late && (err != nil || s.patches != tc.patches) {
			t.Errorf("%s: %d patches, %v", tc.name, s.patches, err)
		}
	}
}

// TestOwnChangedByAdmission: if admission changes objects at every write, an operator finds that out once, says
// what to do, and leaves the objects alone for the longest pause.
func TestOwnChangedByAdmission(t *testing.T) {
	w, s := newLateWorld(t, 3)
	s.patched = func(i int) error {
		s.objects[i].stored = "changed"
		return nil
	}
	got := w.step()
	if got.Again != evolve.MaxBackoff || !strings.Contains(got.Why, "exclude the user that migrates") || !strings.Contains(got.Why, "admission changes it at every write") {
		t.Errorf("%+v", got)
	}
	patches := s.patches
	w.pass(evolve.MaxBackoff - time.Second)
	if got := w.step(); got.Again != time.Second || s.patches != patches {
		t.Errorf("a second before it is time: %+v, after %d more patches", got, s.patches-patches)
	}
	w.pass(time.Second)
	if got := w.step(); got.Again != 2*evolve.MaxBackoff {
		t.Errorf("after the second time: %+v", got)
	}
	w.pass(2 * evolve.MaxBackoff)
	s.patched = func(int) error { return errors.New("a failure that passes") }
	if got := w.step(); got.Again >= evolve.MaxBackoff {
		t.Errorf("after another failure: %+v", got)
	}
	s.patched = nil
	w.pass(evolve.MaxBackoff)
	if got := w.step(); !got.Done && !strings.Contains(got.Why, "kept for a while") {
		t.Errorf("when admission changes nothing any more: %+v", got)
	}
}

// TestProofEndsUnsteady: if admission changes every object at each write, a proof ends after a few of them.
func TestProofEndsUnsteady(t *testing.T) {
	const objects = 400
	w, s := newLateWorld(t, objects)
	s.patched = func(i int) error {
		s.objects[i].stored = "changed"
		return nil
	}
	w.step()
	if written := objects; s.patches <= written || s.patches > written+objects/2 {
		t.Errorf("%d patches for %d objects that were all written once", s.patches, written)
	}
}

// TestOwnChangesInLastLook: a definition that is changed during the last look, for example by a program that
// writes annotations all the time, is pruned as it is then, or not pruned if that is not allowed any more.
func TestOwnChangesInLastLook(t *testing.T) {
	for name, tc := range map[string]struct {
		then *apiextensionsv1.CustomResourceDefinition
		why  string // the reason contains it; "" if it is pruned
	}{
		"an annotation":          {annotated(widgetDefinition("a", 2, "v1", "v2", "v1"), "example.com/seen", "1"), ""},
		"its schema":             {widgetDefinition("a", 3, "v1", "v2", "v1"), ""},
		"it is held":             {annotated(widgetDefinition("a", 2, "v1", "v2", "v1"), migrationv1alpha1.HoldAnnotation, "true"), migrationv1alpha1.HoldAnnotation},
		"its version":            {widgetDefinition("a", 3, "v2", "v2", "v1"), "all store example.com/v1 still"},
		"its version, and back":  {widgetDefinition("a", 4, "v1", "v2", "v1"), "until"},
		"somebody has pruned it": {widgetDefinition("a", 2, "v1", "v1"), ""},
	} {
		w, s := newLateWorld(t, 3)
		s.listed = func(from int) error {
			if from == 0 && w.of("widgets.example.com").proven != (proof{}) {
				then := tc.then.DeepCopy()
				if tc.why == "" {
					then.Annotations = map[string]string{"example.com/seen": fmt.Sprint(s.lists)}
				}
				w.is(then)
			}
			return nil
		}
		if got := w.step(); got.Done != (tc.why == "") || !strings.Contains(got.Why, tc.why) {
			t.Errorf("%s: %+v", name, got)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		must(t, w.objects.Get(t.Context(), client.ObjectKey{Name: widgets.String()}, crd))
		if pruned := slices.Equal(crd.Status.StoredVersions, []string{"v1"}); pruned != (tc.why == "") {
			t.Errorf("%s: storedVersions are %v", name, crd.Status.StoredVersions)
		}
	}
}

func annotated(crd *apiextensionsv1.CustomResourceDefinition, annotation, value string) *apiextensionsv1.CustomResourceDefinition {
	crd.Annotations = map[string]string{annotation: value}
	return crd
}

// TestFound: a version that was found in stored objects is put into the history of the StorageVersion, followed by
// the version that all kube-apiservers store.
func TestFound(t *testing.T) {
	o := newTestObserver(t, widgetDefinition("a", 2, "v2", "v1", "v2"))
	o.observing(widgets, "Widget", "example.com/v2", 0)
	o.definitions.heard(o.definitions.defined(widgets))
	before, _ := o.memory.Of(widgets)
	told, err := o.watch()
	must(t, err)
	defer told.Stop()
	<-told.ResultChan()
	o.found(widgets)
	<-told.ResultChan()
	now, _ := o.memory.Of(widgets)
	if now.Common != before.Common || now.Common == "" || now.UID != before.UID || now.History.Last["example.com/v1"] <= before.History.Epoch || now.History.Epoch <= before.History.Epoch {
		t.Errorf("known was %+v, and is %+v", before, now)
	}
	o.observing(widgets, "Widget", "example.com/v2", time.Second)
	if again, _ := o.memory.Of(widgets); again.History.Epoch != now.History.Epoch {
		t.Errorf("then it is %+v", again)
	}
}
